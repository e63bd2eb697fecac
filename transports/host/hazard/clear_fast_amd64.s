//go:build !race

#include "textflag.h"

// func clear64(word *atomic.Uint64)
TEXT ·clear64(SB), NOSPLIT, $0-8
	MOVQ word+0(FP), AX
	MOVQ $0, (AX)
	RET
