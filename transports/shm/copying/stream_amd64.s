#include "textflag.h"

// LINE copies the line at offset to the same offset, past the caches.
#define LINE(offset) \
	MOVOU offset(SI), X0      \
	MOVOU offset+16(SI), X1   \
	MOVOU offset+32(SI), X2   \
	MOVOU offset+48(SI), X3   \
	MOVNTO X0, offset(DI)     \
	MOVNTO X1, offset+16(DI)  \
	MOVNTO X2, offset+32(DI)  \
	MOVNTO X3, offset+48(DI)

// func streamBlocks(dst, src uintptr, blocks uint64)
TEXT ·streamBlocks(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX
block:
	MOVQ $64, DX // lines in each of the four pages
line:
	LINE(0)
	LINE(4096)
	LINE(8192)
	LINE(12288)
	ADDQ $64, SI
	ADDQ $64, DI
	DECQ DX
	JNZ  line
	ADDQ $12288, SI
	ADDQ $12288, DI
	DECQ CX
	JNZ  block
	SFENCE
	RET
