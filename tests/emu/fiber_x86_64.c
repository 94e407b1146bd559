#include <stdint.h>
#include <string.h>

#include "tests/emu/fiber.h"

/* System V: rbx, rbp and r12 to r15 belong to the caller; the return address is on the stack
 * already. */
__asm__(".text\n"
        ".globl fiber_jump\n"
        ".type fiber_jump, @function\n"
        "fiber_jump:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fiber_jump, . - fiber_jump\n");

/* Six registers, the address that `ret` takes, and the place of a return address that is never
 * used: so main() finds the stack as a call leaves it, 8 beyond a multiple of 16. */
void *fiber_prepare(char *low, size_t n_bytes, void (*main)(void)) {
    uintptr_t saved[8] = {0, 0, 0, 0, 0, 0, (uintptr_t)main, 0};
    return memcpy(low + n_bytes - sizeof saved, saved, sizeof saved);
}
