# CUDA: the headers for the driver back end, and the GPU kernels.
#
# The back end needs only the toolkit's headers, which define types; the driver is loaded at run time. Without the
# headers, a back end without devices is built, which reports the reason at run time. CUDA_INCLUDE is the folder of the
# headers; CUDA_INCLUDE=none builds without them.
# toolkit.sh installs into build/cuda.
CUDA_HOME ?= $(firstword $(patsubst %/include/cuda.h,%,$(wildcard /usr/local/cuda/include/cuda.h build/cuda/include/cuda.h)) /usr/local/cuda)
CUDA_INCLUDE ?= $(patsubst %/cuda.h,%,$(firstword $(wildcard $(CUDA_HOME)/include/cuda.h \
	$(CUDA_HOME)/targets/*/include/cuda.h)))
CUDA_BACKEND_OBJ := $(foreach folder,obj obj/faults,$(patsubst %.c,$(B)/$(folder)/%.o,$(wildcard cuda/gpu_cuda*.c))) \
	$(B)/obj/tests/unit/test_cuda_kernel.o
ifeq ($(CUDA_INCLUDE),none)
$(CUDA_BACKEND_OBJ): ALL_CFLAGS += -DGPOOL_WITHOUT_CUDA
else ifneq ($(CUDA_INCLUDE),)
$(CUDA_BACKEND_OBJ): ALL_CFLAGS += -isystem $(CUDA_INCLUDE)
endif

# GPU kernels: nvcc compiles each file to a fat binary with code for sm_80, sm_90 and, if nvcc supports it, sm_100, and
# PTX that the driver compiles for other devices. images.S embeds the fat binaries, so nothing links the CUDA runtime.
# Without nvcc, or with CUDA=0, the build prints a note and omits the kernels, and the CUDA back end rejects launches with
# this reason. The C references are always built.
NVCC ?= $(shell command -v nvcc 2>/dev/null || ls $(CUDA_HOME)/bin/nvcc 2>/dev/null)
CUDA ?= $(if $(NVCC),1,0)
# The command by which tests get nvcc and the headers, unless a toolkit is installed or CUDA is set.
TOOLKIT := $(if $(filter file,$(origin CUDA)),$(if $(filter-out build/cuda/%,$(NVCC)),,tools/build/toolkit.sh))
# Goals that build the double of the driver install the toolkit first: make begins again after it has made this file.
ifneq ($(TOOLKIT),)
ifneq ($(filter driver-double bench-peers peer-programs,$(MAKECMDGOALS))$(filter cuda-double,$(BACKEND)),)
include build/toolkit.mk
build/toolkit.mk: tools/build/toolkit.txt
	@mkdir -p build
	$(Q)tools/build/deps.sh --quiet build test
	$(Q)$(TOOLKIT)
	@echo '# build/cuda exists, if the toolkit could be installed' > $@
endif
endif
NVCCFLAGS ?=
CUDA_KERNEL_SRC := $(wildcard cuda/kernels/*.cu)
CUDA_KERNEL_IMAGES := $(patsubst cuda/kernels/%.cu,build/kernels/%.fatbin,$(CUDA_KERNEL_SRC))
CUDA_KERNEL_OBJ := $(B)/obj/cuda/kernels/images.o

# Compile again after the toolkit was installed or removed.
$(B)/cuda-toolkit: FORCE
	@mkdir -p $(@D)
	$(Q)echo '$(CUDA) $(CUDA_INCLUDE)' | cmp -s - $@ || echo '$(CUDA) $(CUDA_INCLUDE)' > $@
$(CUDA_BACKEND_OBJ) $(CUDA_KERNEL_OBJ): $(B)/cuda-toolkit

CUDA_ARCHS = $(patsubst sm_%,%,$(filter sm_80 sm_90 sm_100,$(shell $(NVCC) --list-gpu-code)))

# In a common folder: the images are the same for all configurations, and nvcc is slow. NAME.usage has the registers and
# the local memory of each function, as ptxas prints them, for tools/build/lint_kernels.py.
define nvcc_image
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) -std=c++17 -I. $(NVCCFLAGS) $(if $(filter 1,$(WERROR)),-Werror all-warnings) -fatbin -Xptxas -v \
		-MMD -MP -MF $(@:.fatbin=.d) $(foreach arch,$(CUDA_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
		-gencode arch=compute_80,code=compute_80 -o $@ $< 2>$(@:.fatbin=.usage) || { cat $(@:.fatbin=.usage) >&2; exit 1; }
	@grep -F 'warning' $(@:.fatbin=.usage) >&2 || true
endef

build/kernels/%.fatbin: cuda/kernels/%.cu
	$(nvcc_image)

build/roofline/roofline.fatbin: tools/build/roofline.cu $(CUDA_KERNEL_SRC)
	$(nvcc_image)

-include $(CUDA_KERNEL_IMAGES:.fatbin=.d)

ifeq ($(CUDA),1)
$(CUDA_KERNEL_OBJ): ALL_CFLAGS += -DGPOOL_KERNELS -Wa,-Ibuild/kernels
$(CUDA_KERNEL_OBJ): $(CUDA_KERNEL_IMAGES)
endif
$(CUDA_KERNEL_OBJ): cuda/kernels/images.S
	@mkdir -p $(@D)
	$(call say,AS,'$<$(if $(filter 1,$(CUDA)),, (no nvcc: without GPU kernels))')$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# These files are loops over numbers. -O2 prefers small code, so compile them with -O3.
$(addprefix $(B)/obj/cuda/kernels/,attention.o element_rows_avx512.o lora_host.o quantise.o): ALL_CFLAGS += -O3
