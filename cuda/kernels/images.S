/*
 * images.S - the fat binaries that nvcc compiled from the .cu files. They are embedded, so gpool neither links the CUDA
 * runtime nor opens files at run time.
 *
 * Each has code for sm_80, sm_90 and sm_100, and PTX for other devices; the driver selects the code for its device.
 * Without nvcc, gpu_kernel_images[] is all zeros.
 */
#ifdef GPOOL_KERNELS
	.section .rodata
#define QUOTED(text) #text
#define IMAGE(file) .balign 64; image_##file: .incbin QUOTED(file.fatbin);
#include "cuda/kernels/kernels.def"
#define IMAGE(file) .quad image_##file;
#else
#define IMAGE(file) .quad 0;
#endif
	.section .data.rel.ro, "aw"
	.balign 8
	.globl gpu_kernel_images
	.hidden gpu_kernel_images
gpu_kernel_images:
#include "cuda/kernels/kernels.def"
	.section .note.GNU-stack, "", %progbits
