#include "textflag.h"

// R0 is the signal, R1 the siginfo, R2 the ucontext with the program counter at 440. All of them go on as they came.
#define ENTRY(slot) \
	MOVD 440(R2), R3          \
	MOVD ·codeFrom(SB), R4    \
	SUB  R4, R3               \
	MOVD ·codeBytes(SB), R4   \
	CMP  R4, R3               \
	BHS  later                \
	MOVD ·goHandler(SB), R4   \
	JMP  (R4)                 \
later:                      \
	MOVD $·theirs+(slot*512)(SB), R4 \
	MOVD (R4)(R0<<3), R4      \
	JMP  (R4)

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
	MOVD $chain0<>(SB), R3
	MOVD R3, ret_0+0(FP)
	MOVD $chain1<>(SB), R3
	MOVD R3, ret_1+8(FP)
	MOVD $chain2<>(SB), R3
	MOVD R3, ret_2+16(FP)
	MOVD $chain3<>(SB), R3
	MOVD R3, ret_3+24(FP)
	RET
