/* On a device of capability 9.0: what each probe gives, a line each, for tests/golden/sm90.txt.
 *
 * A kernel that a device ends takes its process' device with it. So probes run in a child, and what
 * comes behind one that ends the child runs in the next child: the line of the probe that died says
 * "died". The parent never has a device. */
#include <cinttypes>
#include <cstdio>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "base/die.h"
#include "layers/cuda/device.h"
#include "tests/cuda_probes.h"
}

namespace {

enum { SECONDS = 5 }; // that a probe has: one that waits for ever dies of SIGALRM

/* What child and parent share. */
struct Progress {
    bool opened;   // the device
    int next, bad; // the probe that runs or is to be run; those that are not as expected
};

int run_from(volatile Progress *p) {
    device_open(0, 1 << 20);
    if (!device_is_sm90()) die("no device of capability 9.0");
    for (p->opened = true; p->next < n_probes; p->next = p->next + 1) {
        const Probe *probe = &probes[p->next];
        alarm(SECONDS);
        ProbeResult r = probe->run();
        alarm(0);
        printf("%s %016" PRIx64 "\n", probe->name, r.hash);
        fflush(stdout);
        if (!r.wrong && !probe->dies) continue;
        fprintf(stderr, "%s: %d of %d words are not what the tests expect\n", probe->name,
                probe->dies ? r.n : r.wrong, r.n);
        p->bad = p->bad + 1;
    }
    device_close();
    return 0;
}

} // namespace

int main(int, char **argv) {
    die_set_program(argv[0]);
    auto *p = static_cast<Progress *>(
        mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (p == MAP_FAILED) die("no memory to share");
    while (p->next < n_probes) {
        int status = 0;
        p->opened = false;
        pid_t child = fork();
        if (child < 0) die("no child process");
        if (child == 0) return run_from(p);
        waitpid(child, &status, 0);
        if (p->next == n_probes) break;
        if (!p->opened) return 1; // no device, which the child has said
        printf("%s died\n", probes[p->next].name);
        fflush(stdout);
        if (!probes[p->next].dies) {
            fprintf(stderr, "%s: died, %s %d\n", probes[p->next].name,
                    WIFSIGNALED(status) ? "signal" : "status",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            p->bad++;
        }
        p->next++;
    }
    return p->bad != 0;
}
