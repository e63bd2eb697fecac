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
	LEAQ ·theirs+(slot*2048)(SB), AX \
	JMP  deliver<>(SB)

TEXT chain0<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(0)

TEXT chain1<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(1)

TEXT chain2<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(2)

TEXT chain3<>(SB),NOSPLIT|NOFRAME,$0-0
	ENTRY(3)

// AX is the slot's actions. The kernel has blocked every signal, by Go's flags and mask. The steps that it would have
// taken by those of the action follow here: SIG_DFL in its place for SA_RESETHAND, and then the mask.
TEXT deliver<>(SB),NOSPLIT|NOFRAME,$0-0
	MOVQ DI, CX
	SHLQ $5, CX
	ADDQ CX, AX            // the action: handler, flags, restorer, mask
	LEAQ 8(SP), CX
	CMPQ CX, DX            // the kernel's frame: a return address, and the ucontext behind it
	JNE  jump              // a handler calls its predecessor, which has no say in flags and mask
	SUBQ $40, SP
	MOVQ DI, 0(SP)
	MOVQ SI, 8(SP)
	MOVQ DX, 16(SP)
	MOVQ AX, 24(SP)
	MOVQ 296(DX), R8       // uc_sigmask, of the code that was interrupted
	ORQ  24(AX), R8
	MOVQ 8(AX), R9
	BTQ  $30, R9           // SA_NODEFER
	JCS  mask
	LEAQ -1(DI), CX
	BTSQ CX, R8
mask:
	MOVQ R8, 32(SP)
	BTQ  $31, R9           // SA_RESETHAND
	JCC  set
	LEAQ ·reset(SB), SI
	XORL DX, DX
	MOVQ $8, R10
	MOVQ $13, AX           // rt_sigaction
	SYSCALL
set:
	MOVQ $2, DI            // SIG_SETMASK
	LEAQ 32(SP), SI
	XORL DX, DX
	MOVQ $8, R10
	MOVQ $14, AX           // rt_sigprocmask
	SYSCALL
	MOVQ 0(SP), DI
	MOVQ 8(SP), SI
	MOVQ 16(SP), DX
	MOVQ 24(SP), AX
	ADDQ $40, SP
jump:
	MOVQ (AX), AX
	JMP  AX

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
