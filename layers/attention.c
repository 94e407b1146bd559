#include "layers/attention.h"

#include <math.h>
#include <string.h>

size_t attention_workspace(int n, int64_t S, int64_t H, int64_t Hkv, int64_t D) {
    (void)n, (void)H, (void)Hkv, (void)D;
    return (size_t)S * 8;
}

void attention_forward(Team *t, const Attention *a, float *out, float *lse, const float *qkv) {
    int64_t W = (a->H + 2 * a->Hkv) * a->D;
    float *s = a->workspace, scale = 1 / sqrtf((float)a->D);
    (void)t;
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < a->H; h++)
            for (int64_t i = 0; i < a->S; i++) {
                int64_t g = h / (a->H / a->Hkv);
                const float *q = qkv + (b * a->S + i) * W + h * a->D,
                            *k = qkv + b * a->S * W + (a->H + g) * a->D;
                const float *v = k + a->Hkv * a->D;
                float *o = out + (b * a->S + i) * a->H * a->D + h * a->D, max = -INFINITY, sum = 0;
                for (int64_t j = 0; j <= i; j++) {
                    s[j] = 0;
                    for (int64_t d = 0; d < a->D; d++) s[j] += q[d] * k[j * W + d];
                    s[j] *= scale;
                    max = fmaxf(max, s[j]);
                }
                for (int64_t j = 0; j <= i; j++) sum += s[j] = expf(s[j] - max);
                memset(o, 0, (size_t)a->D * sizeof *o);
                for (int64_t j = 0; j <= i; j++)
                    for (int64_t d = 0; d < a->D; d++) o[d] += s[j] / sum * v[j * W + d];
                lse[(b * a->H + h) * a->S + i] = max + logf(sum);
            }
}

void attention_backward(Team *t, const Attention *a, float *dqkv, const float *dout,
                        const float *qkv, const float *out, const float *lse) {
    int64_t W = (a->H + 2 * a->Hkv) * a->D;
    float scale = 1 / sqrtf((float)a->D);
    (void)t;
    memset(dqkv, 0, (size_t)(a->B * a->S * W) * sizeof *dqkv);
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < a->H; h++)
            for (int64_t i = 0; i < a->S; i++) {
                int64_t g = h / (a->H / a->Hkv), at = (b * a->S + i) * W + h * a->D;
                int64_t kat = b * a->S * W + (a->H + g) * a->D, vat = kat + a->Hkv * a->D;
                const float *o = out + (b * a->S + i) * a->H * a->D + h * a->D;
                const float *go = dout + (b * a->S + i) * a->H * a->D + h * a->D;
                float delta = 0;
                for (int64_t d = 0; d < a->D; d++) delta += o[d] * go[d];
                for (int64_t j = 0; j <= i; j++) {
                    float s = 0, dp = 0;
                    for (int64_t d = 0; d < a->D; d++) {
                        s += qkv[at + d] * qkv[kat + j * W + d];
                        dp += go[d] * qkv[vat + j * W + d];
                    }
                    float p = expf(s * scale - lse[(b * a->H + h) * a->S + i]),
                          ds = p * (dp - delta) * scale;
                    for (int64_t d = 0; d < a->D; d++) {
                        dqkv[at + d] += ds * qkv[kat + j * W + d];
                        dqkv[kat + j * W + d] += ds * qkv[at + d];
                        dqkv[vat + j * W + d] += p * go[d];
                    }
                }
            }
}

void attention_decode(Team *t, const Attention *a, float *out, const float *q, const float *cache,
                      int64_t pos) {
    int64_t W = 2 * a->Hkv * a->D;
    float *s = a->workspace, scale = 1 / sqrtf((float)a->D);
    (void)t;
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < a->H; h++) {
            int64_t g = h / (a->H / a->Hkv);
            const float *k = cache + b * a->S * W + g * a->D, *v = k + a->Hkv * a->D;
            float *o = out + (b * a->H + h) * a->D, max = -INFINITY, sum = 0;
            for (int64_t j = 0; j <= pos; j++) {
                s[j] = 0;
                for (int64_t d = 0; d < a->D; d++)
                    s[j] += q[(b * a->H + h) * a->D + d] * k[j * W + d];
                s[j] *= scale;
                max = fmaxf(max, s[j]);
            }
            for (int64_t j = 0; j <= pos; j++) sum += s[j] = expf(s[j] - max);
            memset(o, 0, (size_t)a->D * sizeof *o);
            for (int64_t j = 0; j <= pos; j++)
                for (int64_t d = 0; d < a->D; d++) o[d] += s[j] / sum * v[j * W + d];
        }
}
