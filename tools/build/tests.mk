# Tests. make builds programs; tests/run selects, builds and runs them, and prints "N passed, N failed, N skipped".

# Groups for `make test`. `sharing`, `rights` and `core` are subsets of `integration`.
TESTS ?= meta headers docs unit abi integration gpu-logic driver cuda fault-sites python install package browser stress model fuzz asan tsan
SECONDS ?=
SEED ?=

run_tests = +$(Q)MAKE='$(MAKE) $(if $(filter true,$(CI)),WERROR=1)' CC='$(CC)' tests/run

.PHONY: check test test-full
check: need-test-deps ## run the quick tests: unit, abi, headers and the core of integration
	$(run_tests) headers unit abi core

test: need-test-deps ## build and run the tests
	$(run_tests) $(TESTS)

test-full: need-test-deps ## also run all bounds and planted bugs of the models, all random steps and crash points, pages of 4 MB, ubsan and vLLM; CI runs it
	$(run_tests) --full $(TESTS) large-pages ubsan debug engines

# Run one test by its name (test_NAME or NAME), or one group: make test-config, make test-unit.
test-%: need-test-deps ## run one test or group by its name, such as test-config
	$(run_tests) $(if $(wildcard tests/*/test_$*.c),test_$*,$*)

.PHONY: check-gpu check-headers stress fuzz debug asan ubsan tsan
check-gpu: need-deps ## run the tests that need a GPU; a skipped test prints the reason
	$(run_tests) gpu

check-headers: ## check that gpool.h compiles in C and C++
	$(run_tests) headers

stress: need-test-deps ## run the stress tests for SECONDS= (600) with SEED=
	+$(Q)MAKE='$(MAKE)' SEED='$(SEED)' STRESS_SECONDS=$(or $(SECONDS),600) tests/run stress

fuzz: need-test-deps ## run each fuzz program for SECONDS= (600) with SEED=
	+$(Q)MAKE='$(MAKE)' SEED='$(SEED)' FUZZ_SECONDS=$(or $(SECONDS),600) tests/run fuzz

debug: need-test-deps ## build with assertions and run the tests of modules that have them
	$(run_tests) debug

asan ubsan tsan: need-test-deps ## build with this sanitizer and run its tests
	$(run_tests) $@

# Compiling a test with optimization takes six times as long, and most of the time of a test is spent in the code under
# test. Tests are therefore compiled without optimization, except those that compute much themselves.
# -Wno-maybe-uninitialized: without optimization, the compiler cannot see what a function reads, and warns of many
# initialized variables.
COMPUTING := $(addprefix $(B)/obj/tests/unit/test_,$(addsuffix .o,adapter_cold adapter_convert adapter_int8 attention element_rows kernels_emulated lora)) \
	$(addprefix $(B)/obj/tests/integration/test_,$(addsuffix .o,client_kv_random client_lora client_vpmm_random client_kv_offload_int8 replay_kv client_lora_tails))
$(filter-out $(COMPUTING),$(call obj,$(wildcard tests/unit/*.c tests/integration/*.c tests/abi/*.c))): ALL_CFLAGS += -O0 -Wno-maybe-uninitialized

# Integration tests with pages of 4 MB, for `tests/run large-pages`.
$(B)/obj/large_pages/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(ALL_CFLAGS) -O0 -Wno-maybe-uninitialized -DTEST_PAGES_4MB -MMD -MP -c -o $@ $<
$(B)/tests/large_pages_%: $(B)/obj/large_pages/tests/integration/%.o $(call obj,$(wildcard tests/lib/*.c)) $(B)/libtools.a $(B)/libagent.a $(B)/libgpool_lora.a $(B)/libgpool.a
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) $(TEST_LDFLAGS) -o $@ $^ $(TEST_LIBS)
.PRECIOUS: $(B)/obj/large_pages/%.o

# The double of NVIDIA's driver: with $(B)/tests/driver in LD_LIBRARY_PATH, programs use it as they use the driver.
DRIVER_CALLS := $(notdir $(basename $(wildcard tests/driver/test_driver_calls*.c)))
DRIVER_TESTS := $(filter-out $(DRIVER_CALLS),$(notdir $(basename $(wildcard tests/driver/test_*.c))))
DRIVER_OBJ := $(call obj,$(filter-out tests/driver/test_%,$(wildcard tests/driver/*.c)))
$(call obj,$(wildcard tests/driver/*.c tests/driver/*/*.c)): ALL_CFLAGS += $(if $(filter-out none,$(CUDA_INCLUDE)),\
	-isystem $(CUDA_INCLUDE),$(error the double of the driver needs the headers of CUDA; run `make deps`, or set CUDA_HOME))
$(B)/tests/driver/libcuda.so.1: $(DRIVER_OBJ) $(EMULATED_OBJ)
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CXX) $(ALL_LDFLAGS) -shared -Wl,-z,defs -Wl,-soname,libcuda.so.1 -o $@ $^ -ldl
$(B)/tests/driver/libnvidia-ml.so.1: $(B)/obj/tests/driver/nvml/nvml.o
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libnvidia-ml.so.1 -o $@ $^ -ldl
$(addprefix $(B)/tests/,$(DRIVER_TESTS)): $(B)/tests/%: $(B)/obj/tests/driver/%.o $(B)/tests/driver/libcuda.so.1
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -Wl,-rpath,'$$ORIGIN/driver' -o $@ $^ -lcmocka
# These use the double as the other tests of the back end do (tests/driver/run), with a gpoold.
$(foreach t,$(DRIVER_CALLS),$(eval $(call test_rule,driver,$(t))))
.PHONY: driver-double
driver-double: $(B)/tests/driver/libcuda.so.1 $(B)/tests/driver/libnvidia-ml.so.1

# Fuzz programs are built only with CONFIG=fuzz. They use clang's libFuzzer, on the same code as the other programs.
ifeq ($(CONFIG),fuzz)
define fuzz_rule
$(B)/$(1): $(B)/obj/tests/fuzz/$(1).o $(call obj,$(wildcard tests/lib/*.c)) $(B)/libtools.a $(B)/libagent.a $(B)/libgpool_lora.a $(B)/libgpool.a
	$$(call say,LD,$$@)$$(CC) $$(ALL_LDFLAGS) $$(TEST_LDFLAGS) -fsanitize=fuzzer -o $$@ $$^ -lcjson $$(AGENT_LIBS) $$(LORA_LIBS) $$(CLIENT_LIBS)
endef
$(foreach f,$(FUZZ),$(eval $(call fuzz_rule,$(f))))

# A dictionary from the message table, for fuzz programs that read messages.
$(B)/messages.dict: $(B)/protogen
	$(call say,GEN,$@)$< --dictionary > $@

.PHONY: some-fuzz
some-fuzz: $(addprefix $(B)/,$(NAMES)) $(B)/messages.dict
endif

# A module in which the agent dies at a store that the test selects (agent/base/crash_point.h), with a mover that
# follows the test's orders.
CRASH_SRC := $(shell grep -l 'crash_point\|journal.h' agent/*.c agent/*/*.c)
CRASH_OBJ := $(patsubst %.c,$(B)/obj/crash/%.o,$(CRASH_SRC))

$(B)/obj/crash/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$< for crashes)$(CC) $(ALL_CFLAGS) -DGPOOL_CRASH_POINTS -MMD -MP -c -o $@ $<

$(B)/tests/crash/gpoold-agent.so: $(CRASH_OBJ) $(B)/obj/tests/modules/unwilling.o \
	$(filter-out $(call obj,$(CRASH_SRC) agent/base/module.c),$(MODULE_OBJ))
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -o $@ $^ $(AGENT_LIBS)

$(B)/tests/test_crash_points $(B)/tests/test_client_lora_crash $(B)/tests/test_objects_crash $(B)/tests/test_pins_crash $(B)/tests/test_roles_crash $(B)/tests/test_trust_crash $(B)/tests/test_mover_gone_crash: | $(B)/tests/crash/gpoold-agent.so
-include $(CRASH_OBJ:.o=.d)

# gpoold, its module and a worker in which any call site of calls.def can fail (tests/faults). Files with call sites are
# compiled without sibling calls, so that each call has a return address of its own.
FAULT_CALLS := $(shell sed -n 's/^CALL.\([A-Za-z0-9_]*\),.*/\1/p' tests/faults/calls.def)
paren := (
FAULT_SRC := $(shell printf '[^a-z_]%s[$(paren)]\n' $(FAULT_CALLS:_8=) | grep -lEf - $(AGENT_SRC) $(CLIENT_SRC) $(LORA_SRC) $(COMMON_SRC))
FAULT_OBJ := $(patsubst %.c,$(B)/obj/faults/%.o,$(FAULT_SRC))
FAULT_LDFLAGS := $(FAULT_CALLS:%=-Wl,--wrap=%)
fault_obj = $(foreach o,$(1),$(if $(filter $(o:$(B)/obj/%=$(B)/obj/faults/%),$(FAULT_OBJ)),$(o:$(B)/obj/%=$(B)/obj/faults/%),$(o)))

$(B)/obj/faults/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$< for faults)$(CC) $(ALL_CFLAGS) -fno-optimize-sibling-calls -MMD -MP -c -o $@ $<
$(B)/obj/faults/agent/keeper/loader.o: ALL_CFLAGS += -DGPOOL_MODULE_DIR='"$(libdir)/gpool"'
$(B)/obj/faults/wrap%.o: tests/faults/wrap.c tests/faults/calls.def
	@mkdir -p $(@D)
	$(call say,CC,$< $*)$(CC) $(ALL_CFLAGS) -DFAULT_MODULE=$* -c -o $@ $<
$(B)/tests/faults/gpoold: $(call fault_obj,$(KEEPER_OBJ)) $(B)/obj/faults/wrap0.o
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) $(FAULT_LDFLAGS) -o $@ $^ $(KEEPER_LIBS)
$(B)/tests/faults/gpoold-agent.so: $(call fault_obj,$(call obj,$(MODULE_SRC))) $(CUDA_KERNEL_OBJ) $(B)/obj/faults/wrap1.o
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) $(FAULT_LDFLAGS) -shared -o $@ $^ $(AGENT_LIBS)
$(B)/tests/faults/worker: $(B)/obj/tests/integration/test_faults.o $(call fault_obj,$(CLIENT_OBJ) $(LORA_OBJ) $(COMMON_OBJ)) $(KERNEL_OBJ) \
	$(call obj,$(wildcard tests/lib/*.c) tools/lib/folder.c) $(B)/obj/faults/wrap2.o
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) $(FAULT_LDFLAGS) -o $@ $^ $(LORA_LIBS) $(CLIENT_LIBS) -lcmocka
.PHONY: fault-programs
fault-programs: all $(B)/tests/test_faults $(addprefix $(B)/tests/faults/,gpoold gpoold-agent.so worker)
-include $(FAULT_OBJ:.o=.d)

# Two further builds of gpoold for tests of upgrades. tests/next has another version and the same layout. tests/other
# has one more field in the ledger, and otherwise the same source and version numbers: such a change must be detected
# although no number was raised.
$(addprefix $(B)/tests/modules/,dying.so recipe.so undescribed.so): $(B)/obj/agent/base/layout.o

NEXT_SRC := agent/base/module.c agent/control/inspect.c
NEXT_OBJ := $(patsubst %.c,$(B)/obj/next/%.o,$(NEXT_SRC))
OTHER_SRC := agent/base/layout.c $(shell grep -l 'ledger_role\|ledger\.roles\|ledger->roles' agent/*.c agent/*/*.c)
OTHER_OBJ := $(patsubst %.c,$(B)/obj/other/%.o,$(OTHER_SRC))

$(B)/obj/next/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,"$< of the next version")$(CC) $(ALL_CFLAGS) -UGPOOL_VERSION -DGPOOL_VERSION='"9.9.9"' -MMD -MP -c -o $@ $<

$(B)/obj/other/include/agent/base/ledger.h: agent/base/ledger.h
	@mkdir -p $(@D)
	$(call say,GEN,$@)sed 's/^struct ledger_role {/&\n\t_Atomic uint64_t refusals;/' $< > $@

$(B)/obj/other/%.o: %.c $(B)/obj/other/include/agent/base/ledger.h
	@mkdir -p $(@D)
	$(call say,CC,"$< of another layout")$(CC) -I$(B)/obj/other/include $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(B)/tests/next/gpoold-agent.so: $(NEXT_OBJ) $(filter-out $(call obj,$(NEXT_SRC)),$(MODULE_OBJ))
$(B)/tests/other/gpoold-agent.so: $(OTHER_OBJ) $(filter-out $(call obj,$(OTHER_SRC)),$(MODULE_OBJ))
$(B)/tests/next/gpoold-agent.so $(B)/tests/other/gpoold-agent.so:
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -o $@ $^ $(AGENT_LIBS)

$(B)/tests/other/gpoold: $(filter $(OTHER_OBJ),$(KEEPER_OBJ:$(B)/obj/%=$(B)/obj/other/%)) $(filter-out $(call obj,$(OTHER_SRC)),$(KEEPER_OBJ))
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(KEEPER_LIBS)

$(B)/tests/test_upgrade $(B)/tests/test_keep_over_restart: | $(B)/tests/next/gpoold-agent.so $(B)/tests/other/gpoold-agent.so $(B)/tests/other/gpoold
-include $(NEXT_OBJ:.o=.d) $(OTHER_OBJ:.o=.d)

# For tests/run: the programs of a group, and everything that they start.
.PHONY: some-tests
some-tests: all $(addprefix $(B)/tests/,$(NAMES)) $(TEST_MODULES)
