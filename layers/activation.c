#include "layers/activation.h"

#include <math.h>

void gelu_forward(Team *t, float *y, const float *x, int64_t n) {
    (void)t;
    for (int64_t i = 0; i < n; i++)
        y[i] = 0.5f * x[i] * (1 + tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}
void gelu_backward(Team *t, float *dx, const float *dy, const float *x, int64_t n) {
    (void)t;
    for (int64_t i = 0; i < n; i++) {
        float th = tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
        dx[i] = dy[i] * (0.5f * (1 + th) + 0.5f * x[i] * (1 - th * th) * 0.7978845608f *
                                               (1 + 3 * 0.044715f * x[i] * x[i]));
    }
}
void swiglu_forward(Team *t, float *y, const float *x, int64_t T, int64_t F) {
    (void)t;
    for (int64_t i = 0; i < T; i++)
        for (int64_t f = 0; f < F; f++) {
            float g = x[i * 2 * F + f];
            y[i * F + f] = g / (1 + expf(-g)) * x[i * 2 * F + F + f];
        }
}
void swiglu_backward(Team *t, float *dx, const float *dy, const float *x, int64_t T, int64_t F) {
    (void)t;
    for (int64_t i = 0; i < T; i++)
        for (int64_t f = 0; f < F; f++) {
            float g = x[i * 2 * F + f], u = x[i * 2 * F + F + f], s = 1 / (1 + expf(-g)),
                  d = dy[i * F + f];
            dx[i * 2 * F + f] = d * u * s * (1 + g * (1 - s));
            dx[i * 2 * F + F + f] = d * g * s;
        }
}
void bias_backward(Team *t, float *dbias, const float *dy, int64_t T, int64_t N) {
    (void)t;
    for (int64_t i = 0; i < T; i++)
        for (int64_t n = 0; n < N; n++) dbias[n] += dy[i * N + n];
}
