#include <stdint.h>
#include <string.h>

#include "tests/emu/fiber.h"

/* AAPCS64: a function preserves x19 to x28, the frame pointer x29, the return address x30 and the
 * lower halves of v8 to v15. */
__asm__(".text\n"
        ".globl fiber_jump\n"
        ".type fiber_jump, %function\n"
        "fiber_jump:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x2, sp\n"
        "    str x2, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size fiber_jump, . - fiber_jump\n");

void *fiber_prepare(char *low, size_t n_bytes, void (*main)(void)) {
    uintptr_t saved[20] = {[11] = (uintptr_t)main}; // x30: fiber_jump returns to main
    return memcpy(low + n_bytes - sizeof saved, saved, sizeof saved);
}
