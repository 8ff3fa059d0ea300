# Tests: make builds, tests/run decides what to build and run, counts, and ends with "N passed, N failed, N skipped".

# Groups of `make test`. `sharing`, `rights` and `core` are parts of `integration`.
TESTS ?= meta headers docs unit abi integration gpu-logic python install package browser stress model fuzz asan tsan
SECONDS ?=
SEED ?=

run_tests = +$(Q)MAKE='$(MAKE) $(if $(filter true,$(CI)),WERROR=1)' CC='$(CC)' tests/run

.PHONY: check test test-full
check: need-test-deps ## the developer's loop: unit, abi, headers and the core of integration
	$(run_tests) headers unit abi core

test: need-test-deps ## build and run the tests
	$(run_tests) $(TESTS)

test-full: need-test-deps ## the same with every bound and planted bug of the models, every crash point, and ubsan; CI runs it
	$(run_tests) --full $(TESTS) ubsan debug

# One test by its name (test_NAME or NAME), or one group: make test-config, make test-unit
test-%: need-test-deps ## one test or group by its name, such as test-config
	$(run_tests) $(if $(wildcard tests/*/test_$*.c),test_$*,$*)

.PHONY: check-gpu check-headers stress fuzz debug asan ubsan tsan
check-gpu: need-deps ## tests that need a GPU; each says why where it skips
	$(run_tests) gpu

check-headers: ## gpool.h compiles on its own in C and C++
	$(run_tests) headers

stress: need-test-deps ## torture for SECONDS= (600) with SEED=
	+$(Q)MAKE='$(MAKE)' SEED='$(SEED)' STRESS_SECONDS=$(or $(SECONDS),600) tests/run stress

fuzz: need-test-deps ## each fuzz program for SECONDS= (600)
	+$(Q)MAKE='$(MAKE)' FUZZ_SECONDS=$(or $(SECONDS),600) tests/run fuzz

debug: need-test-deps ## build with assertions and run the tests of the modules that have some
	$(run_tests) debug

asan ubsan tsan: need-test-deps ## build with this sanitizer and run its tests
	$(run_tests) $@

# The compiler takes six times as long to optimise a test as to compile it, and most of their time is spent in what they test.
# Without optimisation it cannot see what a function reads, and warns of much that is initialised.
# Those that compute much themselves are optimised.
COMPUTING := $(addprefix $(B)/obj/tests/unit/test_,$(addsuffix .o,adapter_cold adapter_convert adapter_int8 element_rows kernels_emulated lora)) \
	$(addprefix $(B)/obj/tests/integration/test_,$(addsuffix .o,client_kv_random client_lora client_vpmm_random client_kv_offload_int8))
$(filter-out $(COMPUTING),$(call obj,$(wildcard tests/unit/*.c tests/integration/*.c tests/abi/*.c))): ALL_CFLAGS += -O0 -Wno-maybe-uninitialized

# Fuzz programs exist in CONFIG=fuzz alone: clang's libFuzzer, over the same code as everything else.
ifeq ($(CONFIG),fuzz)
define fuzz_rule
$(B)/$(1): $(B)/obj/tests/fuzz/$(1).o $(AGENT_LIB_OBJ) $(call obj,$(wildcard tests/lib/*.c)) $(B)/libtools.a $(B)/libgpool_lora.a $(B)/libgpool.a
	$$(call say,LD,$$@)$$(CC) $$(ALL_LDFLAGS) -fsanitize=fuzzer -o $$@ $$^ -lcjson $$(AGENT_LIBS) $$(LORA_LIBS) $$(CLIENT_LIBS)
endef
$(foreach f,$(FUZZ),$(eval $(call fuzz_rule,$(f))))

# The dictionary of the message table, for those that read messages.
$(B)/messages.dict: $(B)/protogen
	$(call say,GEN,$@)$< --dictionary > $@

.PHONY: some-fuzz
some-fuzz: $(addprefix $(B)/,$(NAMES)) $(B)/messages.dict
endif

# The module in which the agent dies at a store of the test's choice (agent/base/crash_point.h), with a mover that follows the orders of the test.
CRASH_SRC := $(shell grep -l 'crash_point\|journal.h' agent/*.c agent/*/*.c)
CRASH_OBJ := $(patsubst %.c,$(B)/obj/crash/%.o,$(CRASH_SRC))

$(B)/obj/crash/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$< for crashes)$(CC) $(ALL_CFLAGS) -DGPOOL_CRASH_POINTS -MMD -MP -c -o $@ $<

$(B)/tests/crash/gpoold-agent.so: $(CRASH_OBJ) $(B)/obj/tests/modules/unwilling.o \
	$(filter-out $(call obj,$(CRASH_SRC) agent/base/module.c),$(MODULE_OBJ))
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -o $@ $^ $(AGENT_LIBS)

$(B)/tests/test_crash_points $(B)/tests/test_client_lora_crash $(B)/tests/test_objects_crash $(B)/tests/test_roles_crash $(B)/tests/test_trust_crash $(B)/tests/test_mover_gone_crash: | $(B)/tests/crash/gpoold-agent.so
-include $(CRASH_OBJ:.o=.d)

# Two further builds of gpoold for tests of an upgrade. tests/next: another version with the same layout. tests/other: a ledger with one
# more field and otherwise the same source and version numbers, so a change is refused even if no number was raised for it.
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

# What tests/run asks for: the programs of a group, and what they start.
.PHONY: some-tests
some-tests: all $(addprefix $(B)/tests/,$(NAMES)) $(TEST_MODULES)
