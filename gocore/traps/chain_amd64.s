#include "textflag.h"

// DI is the signal, SI the siginfo, DX the ucontext with the program counter at 168. All of them go on as they came.
#define ENTRY(slot) \
	MOVQ 168(DX), AX          \
	SUBQ ·codeFrom(SB), AX    \
	CMPQ AX, ·codeBytes(SB)   \
	JAE  later                \
	MOVQ ·goHandler(SB), AX   \
	JMP  AX                   \
later:                      \
	LEAQ ·theirs+(slot*512)(SB), AX \
	MOVQ (AX)(DI*8), AX       \
	JMP  AX

TEXT chain0<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(0)

TEXT chain1<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(1)

TEXT chain2<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(2)

TEXT chain3<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(3)

// func entries() [slots]uintptr
TEXT ·entries(SB),NOSPLIT,$0-32
	LEAQ chain0<>(SB), AX
	MOVQ AX, ret_0+0(FP)
	LEAQ chain1<>(SB), AX
	MOVQ AX, ret_1+8(FP)
	LEAQ chain2<>(SB), AX
	MOVQ AX, ret_2+16(FP)
	LEAQ chain3<>(SB), AX
	MOVQ AX, ret_3+24(FP)
	RET
