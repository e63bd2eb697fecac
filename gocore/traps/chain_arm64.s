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
	MOVD $·theirs+(slot*2048)(SB), R4 \
	JMP  deliver<>(SB)

TEXT chain0<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(0)

TEXT chain1<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(1)

TEXT chain2<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(2)

TEXT chain3<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(3)

// R4 is the slot's actions. The kernel has blocked every signal, by Go's flags and mask. The steps that it would have
// taken by those of the action follow here: SIG_DFL in its place for SA_RESETHAND, and then the mask. A system call
// changes R0 alone.
TEXT deliver<>(SB),NOSPLIT|NOFRAME,$0-0
	ADD  R0<<5, R4, R4     // the action: handler, flags, restorer, mask
	MOVD RSP, R3
	CMP  R1, R3            // the kernel's frame begins with the siginfo
	BNE  jump              // a handler calls its predecessor, which has no say in flags and mask
	SUB  $32, RSP
	MOVD R0, 0(RSP)
	MOVD R1, 8(RSP)
	MOVD R2, 16(RSP)
	MOVD 40(R2), R6        // uc_sigmask, of the code that was interrupted
	MOVD 24(R4), R7
	ORR  R7, R6
	MOVD 8(R4), R5
	TBNZ $30, R5, mask     // SA_NODEFER
	SUB  $1, R0, R3
	MOVD $1, R7
	LSL  R3, R7, R7
	ORR  R7, R6
mask:
	MOVD R6, 24(RSP)
	TBZ  $31, R5, set      // SA_RESETHAND
	MOVD $·reset(SB), R1
	MOVD $0, R2
	MOVD $8, R3
	MOVD $134, R8          // rt_sigaction
	SVC
set:
	MOVD $2, R0            // SIG_SETMASK
	ADD  $24, RSP, R1
	MOVD $0, R2
	MOVD $8, R3
	MOVD $135, R8          // rt_sigprocmask
	SVC
	MOVD 0(RSP), R0
	MOVD 8(RSP), R1
	MOVD 16(RSP), R2
	ADD  $32, RSP
jump:
	MOVD (R4), R4
	JMP  (R4)

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
