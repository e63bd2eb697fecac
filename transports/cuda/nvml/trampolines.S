//go:build cgo

/* The functions of NVML, for the linker: each jumps to where its slot points. A slot points to tent_nvml_absent until the
 * library is there and has the function. See doc.go. */

#define SLOTS tent_nvml_slots

	.data
	.balign 8
	.globl SLOTS
	.hidden SLOTS
SLOTS:
#define FORWARD(name) .quad tent_nvml_absent
#include "names.h"
#undef FORWARD

	.text
	.globl tent_nvml_absent
	.hidden tent_nvml_absent
	.type tent_nvml_absent, %function
tent_nvml_absent:
#if defined(__x86_64__)
	movl $13, %eax /* NVML_ERROR_FUNCTION_NOT_FOUND */
	ret
#elif defined(__aarch64__)
	mov w0, #13
	ret
#endif

	.set index, 0
	.macro forward name
	.globl \name
	.hidden \name
	.type \name, %function
\name:
#if defined(__x86_64__)
	jmp *(SLOTS + 8*index)(%rip)
#elif defined(__aarch64__)
	adrp x16, SLOTS + 8*index
	ldr x16, [x16, #:lo12:SLOTS + 8*index]
	br x16
#endif
	.set index, index + 1
	.endm

#define FORWARD(name) forward name
#include "names.h"

	.section .note.GNU-stack,"",%progbits
