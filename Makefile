# gpool: all files are built below build/<config>/. `make help` lists the targets.
#
# The rules find sources by folder, so a new file needs no line here:
#   shm/ proto/ cuda/      part of both gpoold and libgpool
#   agent/keeper/          gpoold, with agent/config/ and some files of agent/base/
#   agent/                 the other files: gpoold-agent.so, which gpoold's child processes load
#   client/                libgpool, libgpool_lora, libgpool_torch
#   tools/NAME/main.c      a program, built from all files of its folder; tools/lib/ is linked to all of them
#   tests/*/test_NAME.c    one test program each

VERSION := 0.2.0
# See docs/decisions/soname.md: 0.MINOR before version 1.0, then the major version.
SOVERSION := $(shell echo '$(VERSION)' | sed -E 's/^(0\.[0-9]+|[0-9]+).*/\1/')

prefix ?= /usr/local
bindir ?= $(prefix)/bin
sbindir ?= $(prefix)/sbin
libdir ?= $(prefix)/lib
includedir ?= $(prefix)/include
mandir ?= $(prefix)/share/man
sysconfdir ?= /etc

# Configurations: release (default), debug, asan, ubsan, tsan, fuzz. Each has its own folder. For release, there are
# links to the programs in build/ itself, such as build/gpoold.
CONFIG ?= release
B := build/$(CONFIG)

V ?= 0
ifeq ($(V),0)
Q := @
say = @printf '  %-7s %s\n' $(1) $(2);
endif

ifeq ($(origin CC),default)
CC := gcc
endif
CLANG ?= clang
WARNINGS := -Wall -Wextra -Wshadow -Wundef -Wvla -Wformat=2 -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes \
	-Wimplicit-fallthrough
ifeq ($(WERROR),1)
WARNINGS += -Werror
endif
CFLAGS ?= -O2 -g
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -DGPOOL_VERSION='"$(VERSION)"' -fPIC -fvisibility=hidden -pthread $(WARNINGS) -I. $(CFLAGS) $(CONFIG_CFLAGS)
ALL_LDFLAGS = -pthread $(LDFLAGS) $(CONFIG_CFLAGS)

# Enable the assertions of shm/invariant.h.
ifeq ($(CONFIG),debug)
CONFIG_CFLAGS := -DGPOOL_DEBUG -O1 -g
endif
# Sanitizer reports need only line numbers, and -g1 compiles faster. Without the runtime library for undefined behavior,
# the search for leaks at the end of each process takes half as long. AddressSanitizer then reports undefined
# behavior as an illegal instruction (ILL), with the line of the source; the configuration ubsan describes it.
ifeq ($(CONFIG),asan)
CONFIG_CFLAGS := -fsanitize=address,undefined -fsanitize-undefined-trap-on-error -fno-omit-frame-pointer -O1 -g1
endif
ifeq ($(CONFIG),ubsan)
CONFIG_CFLAGS := -fsanitize=undefined -fno-sanitize-recover=all -O1 -g1
endif
# ThreadSanitizer does not model fences; -Wno-tsan disables the warning about that. gpool's fences order atomic
# accesses, and the sanitizer reports two accesses only if one of them is not atomic.
ifeq ($(CONFIG),tsan)
CONFIG_CFLAGS := -fsanitize=thread -Wno-tsan -O1 -g1
endif
ifeq ($(CONFIG),fuzz)
CC := $(CLANG)
CONFIG_CFLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -O1 -g1
endif

include tools/build/cuda.mk

COMMON_SRC := $(wildcard shm/*.c proto/*.c cuda/*.c cuda/kernels/*.c shm/policy/*.c)
AGENT_SRC := $(wildcard agent/*.c agent/*/*.c)
KEEPER_SRC := agent/main.c $(addprefix agent/base/,layout.c ledger.c log.c) $(wildcard agent/config/*.c agent/keeper/*.c shm/*.c proto/*.c)
MODULE_SRC := $(filter-out agent/main.c agent/keeper/%,$(AGENT_SRC)) $(COMMON_SRC)
CLIENT_SRC := $(filter-out client/torch/% client/examples/%,$(wildcard client/*.c client/*/*.c))
LORA_SRC := $(wildcard client/lora/*/*.c)
TOOLS := $(patsubst tools/%/main.c,%,$(wildcard tools/*/main.c))
UNIT := $(notdir $(basename $(wildcard tests/unit/test_*.c)))
ABI := $(notdir $(basename $(wildcard tests/abi/test_*.c)))
INTEGRATION := $(notdir $(basename $(wildcard tests/integration/test_*.c)))
GPU_TESTS := $(notdir $(basename $(wildcard tests/gpu/*.c)))
STRESS := $(notdir $(basename $(wildcard tests/stress/*.c)))
FUZZ := $(notdir $(basename $(wildcard tests/fuzz/fuzz_*.c)))

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
COMMON_OBJ := $(call obj,$(COMMON_SRC))
AGENT_OBJ := $(call obj,$(AGENT_SRC))
KEEPER_OBJ := $(call obj,$(KEEPER_SRC))
MODULE_OBJ := $(call obj,$(MODULE_SRC)) $(CUDA_KERNEL_OBJ)
AGENT_LIB_OBJ := $(filter-out $(B)/obj/agent/main.o,$(AGENT_OBJ))
CLIENT_OBJ := $(call obj,$(CLIENT_SRC))
LORA_OBJ := $(call obj,$(LORA_SRC))
KERNEL_OBJ := $(CUDA_KERNEL_OBJ)

CLIENT_LIBS := -lnanomsg -ldl
LORA_LIBS := -luring -lxxhash -lzstd -lyajl -lpcre2-8 -lm
KEEPER_LIBS := -lconfig -ldl
AGENT_LIBS := -lnanomsg -lconfig -lseccomp -luring -lxxhash -ldl
TOOL_LIBS := -lcjson $(LORA_LIBS) $(CLIENT_LIBS)
bench_LIBS := -ljemalloc
exporter_LIBS := -lmicrohttpd
poolctl_LIBS := -lncursesw -ltinfo
# The programs embed these files.
$(B)/obj/tools/exporter/page.o: tools/exporter/page.html
$(B)/obj/tools/demo/report.o: tools/demo/style.css
TEST_LIBS := -lcmocka -lcjson $(AGENT_LIBS) $(LORA_LIBS) $(CLIENT_LIBS)

PROGRAMS := $(B)/gpoold $(B)/poolctl $(B)/gpool-demo $(B)/gpool-bench $(B)/gpool-exporter $(B)/gpool-replay
LIBRARIES := $(addprefix $(B)/,libgpool.so libgpool.a libgpool_lora.so libgpool_lora.a libgpool_torch.so)
tool_name = $(if $(filter poolctl,$(1)),poolctl,gpool-$(1))

.DEFAULT_GOAL := all
.PHONY: all
all: need-deps $(B)/gpoold $(B)/gpoold-agent.so $(LIBRARIES) $(foreach t,$(TOOLS),$(B)/$(call tool_name,$(t))) $(B)/gpool.pc $(B)/gpool-lora.pc links

# build/NAME -> build/release/NAME
.PHONY: links
links: $(B)/gpoold $(B)/gpoold-agent.so $(LIBRARIES) $(foreach t,$(TOOLS),$(B)/$(call tool_name,$(t)))
ifeq ($(CONFIG),release)
	$(Q)for f in $(notdir $^); do ln -sfn release/$$f build/$$f; done
	$(Q)for f in libgpool libgpool_lora; do ln -sfn release/$$f.so build/$$f.so.$(SOVERSION); done
endif

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(B)/gpoold: $(KEEPER_OBJ)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(KEEPER_LIBS)

$(B)/gpoold-agent.so: $(MODULE_OBJ)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -o $@ $^ $(AGENT_LIBS)

# The folder in which an installed gpoold finds its module. The file is rewritten only when the folder changes.
$(B)/module-dir: FORCE
	@mkdir -p $(@D)
	$(Q)echo '$(libdir)/gpool' | cmp -s - $@ || echo '$(libdir)/gpool' > $@
.PHONY: FORCE
FORCE:

# Rebuild everything that contains the version when the version changes.
$(B)/version: FORCE
	@mkdir -p $(@D)
	$(Q)echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' > $@
$(call obj,$(shell grep -rlw GPOOL_VERSION --include='*.c' agent client tools tests)) $(B)/gpool.pc $(B)/gpool-lora.pc: $(B)/version
$(B)/obj/agent/keeper/loader.o: $(B)/module-dir
$(B)/obj/agent/keeper/loader.o: ALL_CFLAGS += -DGPOOL_MODULE_DIR='"$(libdir)/gpool"'

# The agent's code for test programs, which are linked only with what they use.
$(B)/libagent.a: $(AGENT_LIB_OBJ)
	$(call say,AR,$@)rm -f $@ && ar rcs $@ $^

$(B)/libgpool.a: $(CLIENT_OBJ) $(COMMON_OBJ) $(KERNEL_OBJ)
	$(call say,AR,$@)rm -f $@ && ar rcs $@ $^

# libgpool_lora uses internal symbols of libgpool, which carry the version of both; see client/core/internal.h.
$(B)/libgpool.map: client/libgpool.map $(B)/version
	@mkdir -p $(@D)
	$(Q)sed 's/@VERSION@/$(VERSION)/' $< > $@

$(B)/libgpool.so: $(CLIENT_OBJ) $(COMMON_OBJ) $(KERNEL_OBJ) $(B)/libgpool.map
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -Wl,--as-needed -Wl,-soname,libgpool.so.$(SOVERSION) -Wl,--version-script=$(B)/libgpool.map \
		-o $@ $(filter %.o,$^) $(CLIENT_LIBS) && ln -sfn libgpool.so $(B)/libgpool.so.$(SOVERSION)

$(B)/libgpool_lora.a: $(LORA_OBJ)
	$(call say,AR,$@)rm -f $@ && ar rcs $@ $^

# libgpool_lora has its own copies of the functions that it uses from shm/ and cuda/. They have no state, and
# --exclude-libs hides them.
$(B)/libcommon.a: $(COMMON_OBJ) $(KERNEL_OBJ)
	$(call say,AR,$@)rm -f $@ && ar rcs $@ $^

$(B)/libgpool_lora.so: $(LORA_OBJ) $(B)/libgpool.so $(B)/libcommon.a client/lora/libgpool_lora.map
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -Wl,--as-needed -Wl,-soname,libgpool_lora.so.$(SOVERSION) -Wl,-rpath,'$$ORIGIN' \
		-Wl,--version-script=client/lora/libgpool_lora.map -o $@ $(LORA_OBJ) -L$(B) -lgpool $(B)/libcommon.a $(LORA_LIBS) && \
		ln -sfn libgpool_lora.so $(B)/libgpool_lora.so.$(SOVERSION)

# libgpool_torch is an ordinary user of libgpool: it includes only the public headers, and finds libgpool in its own
# folder.
$(B)/obj/client/torch/torch.o $(B)/obj/tests/integration/test_torch.o: ALL_CFLAGS += -Iclient
$(B)/libgpool_torch.so: $(B)/obj/client/torch/torch.o $(B)/libgpool.so
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libgpool_torch.so.$(SOVERSION) -Wl,-rpath,'$$ORIGIN' -o $@ $< -L$(B) -lgpool

# The native module of the Python package, in the stable ABI of CPython 3.9: one file for all versions from then on. It is not linked
# with libgpool, which the package loads. The package is used in place, so a copy is put there.
PYTHON ?= /usr/bin/python3
PYTHON_NATIVE := client/python/gpool/_native.abi3.so
NATIVE_OBJ := $(call obj,$(wildcard client/python/native/*.c))
# Their declarations are other people's: -isystem keeps the warnings to ours.
$(NATIVE_OBJ): ALL_CFLAGS += -isystem $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))') \
	-DPy_LIMITED_API=0x03090000 -Iclient
$(B)/_native.abi3.so: $(NATIVE_OBJ)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -o $@ $^
$(PYTHON_NATIVE): $(B)/_native.abi3.so
	$(Q)cp $< $@~ && mv $@~ $@

$(B)/libtools.a: $(call obj,$(wildcard tools/lib/*.c))
	$(call say,AR,$@)rm -f $@ && ar rcs $@ $^

define tool_rule
$(B)/$(call tool_name,$(1)): $(call obj,$(wildcard tools/$(1)/*.c)) $($(1)_OBJ) $(B)/libtools.a $(B)/libgpool_lora.a $(B)/libgpool.a
	$$(call say,LD,$$@)$$(CC) $$(ALL_LDFLAGS) -o $$@ $$^ $$(TOOL_LIBS) $$($(1)_LIBS)
endef
$(foreach t,$(TOOLS),$(eval $(call tool_rule,$(t))))

$(B)/gpool.pc: Makefile
	@mkdir -p $(@D)
	$(Q)printf '%s\n' 'prefix=$(prefix)' 'libdir=$(libdir)' 'includedir=$(includedir)' '' 'Name: gpool' \
		'Description: GPU memory lent in pages by one agent per machine' 'Version: $(VERSION)' \
		'Libs: -L$${libdir} -lgpool' 'Libs.private: $(CLIENT_LIBS) -pthread' 'Cflags: -I$${includedir}' > $@

$(B)/gpool-lora.pc: Makefile
	@mkdir -p $(@D)
	$(Q)printf '%s\n' 'prefix=$(prefix)' 'libdir=$(libdir)' '' 'Name: gpool-lora' \
		'Description: LoRA adapters in memory of gpool' 'Version: $(VERSION)' 'Requires: gpool = $(VERSION)' \
		'Libs: -L$${libdir} -lgpool_lora' 'Libs.private: $(LORA_LIBS)' > $@

# Compile the GPU kernels as C++ for the CPU. tests/emulated/ provides the declarations that nvcc would.
EMULATED_OBJ := $(patsubst cuda/kernels/%.cu,$(B)/obj/emulated/%.o,$(CUDA_KERNEL_SRC)) $(B)/obj/tests/emulated/emulator.o
$(B)/obj/emulated/%.o: cuda/kernels/%.cu
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(CXX) -x c++ -std=c++17 -include tests/emulated/cuda.h -fno-exceptions -fno-rtti -fno-strict-aliasing \
		$(filter-out -std=c11 -Wstrict-prototypes -Wmissing-prototypes,$(ALL_CFLAGS)) -Wno-unknown-pragmas -MMD -MP -c -o $@ $<
ifeq ($(CONFIG),tsan)
$(B)/obj/tests/emulated/emulator.o: ALL_CFLAGS += -fno-sanitize=thread -DEMULATOR_CONCURRENT
# The sanitizer checks the kernels. The test compares their results after they have ended, with values that it computes.
$(B)/obj/tests/unit/test_attention.o: ALL_CFLAGS += -fno-sanitize=thread
endif
test_kernels_emulated_OBJ := $(EMULATED_OBJ) $(B)/obj/tests/emulated/emulator_ops.o
test_attention_OBJ := $(test_kernels_emulated_OBJ)

test_metrics_OBJ := $(call obj,tools/exporter/metrics.c tools/exporter/sampler.c)
test_http_OBJ := $(call obj,tools/exporter/http.c tools/exporter/peers.c)
test_http_LIBS := $(exporter_LIBS)

# LLVM's linker takes half of the time, and hundreds of test programs are linked.
TEST_LDFLAGS := $(if $(shell command -v ld.lld),-fuse-ld=lld)
# Without this option, each start of a program with AddressSanitizer writes to more than 1,000 pages of relocations.
ifneq ($(filter asan tsan,$(CONFIG)),)
TEST_LDFLAGS += -no-pie
endif

# Test programs may use the code of agent, client and tools/lib, without the main() of the agent.
define test_rule
$(B)/tests/$(2): $(B)/obj/tests/$(1)/$(2).o $$($(2)_OBJ) $(B)/libtools.a $(B)/libagent.a $(B)/libgpool_lora.a $(B)/libgpool.a $(call obj,$(wildcard tests/lib/*.c))
	@mkdir -p $$(@D)
	$$(call say,LD,$$@)$$(CC) $$(ALL_LDFLAGS) $$(TEST_LDFLAGS) -o $$@ $(B)/obj/tests/$(1)/$(2).o $$($(2)_OBJ) $(call obj,$(wildcard tests/lib/*.c)) \
		$(B)/libtools.a $(B)/libagent.a $(B)/libgpool_lora.a $(B)/libgpool.a $$(TEST_LIBS) $$($(2)_LIBS)
endef
$(foreach t,$(UNIT),$(eval $(call test_rule,unit,$(t))))
$(foreach t,$(ABI),$(eval $(call test_rule,abi,$(t))))
$(foreach t,$(INTEGRATION),$(eval $(call test_rule,integration,$(t))))
$(foreach t,$(STRESS),$(eval $(call test_rule,stress,$(t))))
$(foreach t,$(GPU_TESTS),$(eval $(call test_rule,gpu,$(t))))
TEST_PROGRAMS := $(foreach t,$(UNIT) $(ABI) $(INTEGRATION) $(STRESS) $(GPU_TESTS),$(B)/tests/$(t))

# Modules for tests of the keeper; two of them are gpoold's own module with another mover.
TEST_MODULES := $(patsubst tests/modules/%.c,$(B)/tests/modules/%.so,$(wildcard tests/modules/*.c))
$(B)/tests/modules/%.so: $(B)/obj/tests/modules/%.o
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -o $@ $^ $(if $(filter %/agent.o,$^),$(AGENT_LIBS))
.SECONDARY: $(patsubst tests/modules/%.c,$(B)/obj/tests/modules/%.o,$(wildcard tests/modules/*.c))
$(B)/tests/modules/mover.so $(B)/tests/modules/unwilling.so: $(filter-out $(B)/obj/agent/base/module.o,$(MODULE_OBJ))

.PHONY: tests
tests: all $(TEST_PROGRAMS) $(TEST_MODULES)

include tools/build/targets.mk

-include $(shell find $(B) -name '*.d' 2>/dev/null)
