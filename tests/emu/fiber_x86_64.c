#include <stdint.h>
#include <string.h>

#include "tests/emu/fiber.h"

/* System V ABI: a function preserves rbx, rbp and r12 to r15; the call has put the return address
 * on the stack. */
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

/* Six registers, the address for `ret`, and a slot for a return address that is never used: main()
 * finds the stack as after a call, 8 bytes beyond a multiple of 16. */
void *fiber_prepare(char *low, size_t n_bytes, void (*main)(void)) {
    uintptr_t saved[8] = {0, 0, 0, 0, 0, 0, (uintptr_t)main, 0};
    return memcpy(low + n_bytes - sizeof saved, saved, sizeof saved);
}
