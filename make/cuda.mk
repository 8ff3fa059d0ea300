# CUDA: the headers for the driver back end, and the GPU kernels.
#
# The back end needs only the toolkit's headers, for types; the driver is loaded at run time. Without them it builds all the same
# and says at run time that it has no devices. CUDA_INCLUDE names their folder; CUDA_INCLUDE=none builds without (make clean first).
CUDA_HOME ?= /usr/local/cuda
CUDA_INCLUDE ?= $(patsubst %/cuda.h,%,$(firstword $(wildcard $(CUDA_HOME)/include/cuda.h \
	$(CUDA_HOME)/targets/*/include/cuda.h)))
CUDA_BACKEND_OBJ := $(patsubst %.c,$(B)/obj/%.o,$(wildcard cuda/gpu_cuda*.c))
ifeq ($(CUDA_INCLUDE),none)
$(CUDA_BACKEND_OBJ): ALL_CFLAGS += -DGPOOL_WITHOUT_CUDA
else ifneq ($(CUDA_INCLUDE),)
$(CUDA_BACKEND_OBJ): ALL_CFLAGS += -isystem $(CUDA_INCLUDE)
endif

# The GPU kernels: built to PTX and cubin by nvcc and embedded, so that nothing links the CUDA runtime. Without nvcc (or with
# CUDA=0) all but the kernels builds, and says so once.
NVCC ?= $(shell command -v nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
CUDA ?= $(if $(NVCC),1,0)
CUDA_KERNEL_SRC := $(wildcard cuda/kernels/*.cu)
CUDA_KERNEL_OBJ :=
