/* On a device of capability 9.0: what each probe gives, a line each, for tests/golden/sm90.txt. */
#include <cinttypes>
#include <cstdio>

extern "C" {
#include "base/die.h"
#include "layers/cuda/device.h"
#include "tests/cuda_probes.h"
}

int main(int, char **argv) {
    int bad = 0;
    die_set_program(argv[0]);
    device_open(0, 1 << 20);
    if (!device_is_sm90()) die("no device of capability 9.0");
    for (int i = 0; i < n_probes; i++) {
        ProbeResult r = probes[i].run();
        printf("%s %016" PRIx64 "\n", probes[i].name, r.hash);
        if (r.wrong)
            fprintf(stderr, "%s: %d of %d words are not what the tests expect\n", probes[i].name,
                    r.wrong, r.n);
        bad += r.wrong != 0;
    }
    device_close();
    return bad != 0;
}
