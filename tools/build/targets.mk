# Targets for users. `make help` prints the text after two number signs.
#
# tests/run builds and runs the tests. The rules for fuzz programs, and the variables for tests, are in
# tools/build/tests.mk.

include tools/build/tests.mk
include tools/build/peers.mk

INSTALL ?= install
MANDIRS := 1 3 5 7 8
man_pages = $(wildcard docs/man/*.$(1))
TOOL_NAMES := $(foreach t,$(TOOLS),$(call tool_name,$(t)))

.PHONY: help
help: ## print this text
	@echo 'gpool $(VERSION): make [TARGET...] [VARIABLE=VALUE...]'
	@echo
	@awk -F ':.*## ' '/^[a-z%-]+[a-z %-]*:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@sed -n 's/^# VARIABLE /  /p' $(MAKEFILE_LIST)

# VARIABLE V=1             show commands
# VARIABLE WERROR=1        treat warnings as errors; set if CI=true
# VARIABLE CUDA=0          build without GPU kernels, even if nvcc is installed
# VARIABLE CONFIG=asan     configuration: release, debug, asan, ubsan, tsan, fuzz
# VARIABLE TESTS="unit"    groups or names of tests to run
# VARIABLE SECONDS= SEED=  for stress and fuzz
# VARIABLE prefix= DESTDIR=  target folders of install; also bindir, sbindir, libdir, includedir, mandir, sysconfdir, pythondir

all: ## build everything except tests; programs are in build/

# ---- packages ----

.PHONY: deps need-deps need-test-deps
deps: ## install missing Debian packages and, without the CUDA toolkit, NVIDIA's compiler from PyPI
	$(Q)tools/build/deps.sh
	$(Q)$(TOOLKIT)

need-deps:
	$(Q)tools/build/deps.sh --quiet build

need-test-deps:
	$(Q)tools/build/deps.sh --quiet build test
	$(Q)$(TOOLKIT)

# Check the packages before compiling anything.
$(COMMON_OBJ) $(AGENT_OBJ) $(CLIENT_OBJ) $(LORA_OBJ) $(NATIVE_OBJ): | need-deps

# ---- running programs ----

.PHONY: demo bench bench-python
# BACKEND: host, cuda, or cuda-double: the back end `cuda` on the tests' double of the driver.
BACKEND ?= host
# Groups of gpool-bench fork after they have used the driver, write to pages, and use pools of up to 80 GB.
BENCH_DOUBLE := memory=128g fork=1 cpu_access=1
demo: all $(if $(filter cuda-double,$(BACKEND)),driver-double) ## demonstrate gpool, without a GPU; BACKEND= host, cuda or cuda-double
	$(Q)$(if $(filter cuda-double,$(BACKEND)),CONFIG=$(CONFIG) tests/driver/run) $(B)/gpool-demo --backend $(BACKEND:-double=) --report build/demo.html $(DEMO_ARGS)

bench: all $(if $(filter cuda-double,$(BACKEND)),driver-double) ## run gpool-bench with the arguments BENCH_ARGS=; BACKEND= as for demo
	$(Q)$(if $(filter cuda-double,$(BACKEND)),CONFIG=$(CONFIG) tests/driver/run $(BENCH_DOUBLE)) $(B)/gpool-bench --backend $(BACKEND:-double=) $(BENCH_ARGS)

.PHONY: bench-against
bench-against: all ## build the revision REV= below build/against, and measure it and this tree alternately, with BENCH_ARGS=
	$(Q)tools/build/against '$(REV)' $(B)/gpool-bench $(BENCH_ARGS)

.PHONY: bench-scaling
bench-scaling: all ## measure how costs grow with pages, GPUs, sessions, threads, objects and adapters, with the arguments SCALING_ARGS=, such as --document
	$(Q)$(PYTHON) tools/bench/scaling.py $(B) $(SCALING_ARGS)

$(B)/obj/tests/python/steps.o: ALL_CFLAGS += -Iclient
$(B)/tests/steps.so: $(B)/obj/tests/python/steps.o $(B)/libgpool.so
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -o $@ $< -L$(B) -lgpool

bench-python: all $(B)/tests/steps.so ## measure the calls of an engine's step in Python beside C
	$(Q)$(PYTHON) tests/python/steps.py $(abspath $(B)/tests/steps.so)

# ---- engines ----

.PHONY: test-engines
test-engines: need-test-deps ## test vLLM on gpool, in a virtual environment of 6 GB below build/; ENGINES= names tests
	$(run_tests) $(or $(addprefix engines/,$(ENGINES)),engines)

.PHONY: bench-engines
bench-engines: all ## measure vLLM on gpool beside stock vLLM, in the same environment; ENGINES_ARGS=, such as --document
	$(Q)tools/build/engines.sh $(abspath build/engines)
	$(Q)build/engines/bin/python tests/engines/bench.py $(ENGINES_ARGS)

.PHONY: demo-engines
demo-engines: all ## demonstrate vLLM on gpool: two servers share one pool, in the same environment; DEMO_ARGS=
	$(Q)tools/build/engines.sh $(abspath build/engines)
	$(Q)build/engines/bin/python tools/engines/demo.py $(DEMO_ARGS)

# ---- generated documents ----

$(B)/confgen: $(B)/obj/docs/man/gen/confgen.o $(filter $(B)/obj/agent/config/%.o,$(AGENT_OBJ))
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -o $@ $^ -lconfig

$(B)/protogen: $(B)/obj/proto/gen/protogen.o $(filter $(B)/obj/proto/%.o,$(COMMON_OBJ))
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -o $@ $^

# Replace each part of the second file, from a line "Begin of what ..." to "End of ...", by the corresponding part of
# the first.
define SPLICE
NR == FNR { if (/^\.\\" Begin of what/) parts++; part[parts] = part[parts] $$0 "\n"; next } \
/^\.\\" Begin of what/ { printf "%s", part[++placed]; wrong += within; within = 1 } \
!within { print } \
/^\.\\" End of what/ { within = 0 } \
END { exit !parts || placed != parts || wrong || within }
endef

.PHONY: docs
docs: $(B)/confgen $(B)/protogen $(B)/poolctl $(B)/gpool-exporter ## regenerate documents: manuals, docs/internals/messages.md, docs/metrics.md
	$(call say,GEN,agent/config/gpoold.conf)$(B)/confgen --example > $(B)/gpoold.conf && cp $(B)/gpoold.conf agent/config/gpoold.conf
	$(call say,GEN,docs/man/gpoold.conf.5)$(B)/confgen --man docs/man/gpoold.conf.5.in > $(B)/gpoold.conf.5 && \
		cp $(B)/gpoold.conf.5 docs/man/
	$(call say,GEN,docs/internals/messages.md)$(B)/protogen --markdown > $(B)/messages.md && cp $(B)/messages.md docs/internals/
	$(call say,GEN,docs/metrics.md)$(B)/gpool-exporter --metrics > $(B)/metrics.md && cp $(B)/metrics.md docs/
	$(call say,GEN,docs/driver_calls.md)tests/docs/driver_calls --write
	$(call say,GEN,docs/fault_injection.md)tests/faults/sites --write
	$(call say,GEN,docs/requirements.md)tests/docs/requirements --write
	$(call say,GEN,docs/man/gpool.3)docs/man/gen/gpool3.py client/gpool.h > $(B)/gpool.3 && cp $(B)/gpool.3 docs/man/
	$(call say,GEN,docs/man/poolctl.1)$(B)/poolctl help --man > $(B)/poolctl.parts && \
		awk '$(SPLICE)' $(B)/poolctl.parts docs/man/poolctl.1 > $(B)/poolctl.1 && cp $(B)/poolctl.1 docs/man/

.PHONY: benchmarks
benchmarks: $(B)/gpool-bench ## measure the figures of docs/benchmarks.md and write its tables; the machine must be idle
	$(Q)python3 tools/bench/benchmarks.py $<

# ---- checking and formatting the source ----

.PHONY: lint analyze format roofline
roofline: $(if $(filter 1,$(CUDA)),build/roofline/roofline.fatbin $(CUDA_KERNEL_IMAGES)) ## estimate the times of the kernels on some GPUs, from their instructions
	$(Q)tools/build/roofline.py

lint: all need-test-deps ## check layers, format, words, shell scripts and links between documents
	$(Q)tools/build/lint

analyze: ## run cppcheck and clang-tidy, if installed
	$(Q)tools/build/analyze.sh $(ALL_CFLAGS)

format: ## apply clang-format and ruff
	$(Q)tools/build/format

# ---- install ----

SHARED := libgpool libgpool_lora
COMPLETION_DIR := $(prefix)/share/bash-completion/completions
ZSH_DIR := $(prefix)/share/zsh/site-functions
TRACE_DIR := $(prefix)/share/gpool/traces
TRACES := $(wildcard tools/demo/traces/*)
MONITORING_DIR := $(prefix)/share/gpool/monitoring
MONITORING := tools/exporter/monitoring/rules.yml $(B)/grafana-dashboard.json
SYSTEMD_DIR := $(prefix)/lib/systemd/system
SYSUSERS_DIR := $(prefix)/lib/sysusers.d
TMPFILES_DIR := $(prefix)/lib/tmpfiles.d
UNITS := $(notdir $(basename $(wildcard tools/packaging/systemd/*.service.in)))

# The folder below prefix in which $(PYTHON) finds packages.
pythondir ?= $(shell $(PYTHON) -c 'import site; print(next(p for p in site.getsitepackages() if p.startswith("$(prefix)/lib/")))' 2>/dev/null || \
	echo $(prefix)/lib/python3/dist-packages)

# Generated files that are installed: the completions, from poolctl's tables; the dashboard, from a table of graphs; the
# declarations of the Python package, from the public headers. The declarations are written into the package in the
# source tree, from which the package can also be used.
PYTHON_ABI := client/python/gpool/_abi.py
GENERATED := $(addprefix $(B)/,poolctl.bash _poolctl grafana-dashboard.json) $(PYTHON_ABI)
# The package in the source tree has the module of the release build.
ifeq ($(CONFIG),release)
GENERATED += $(PYTHON_NATIVE)
else ifneq ($(filter debug debian,$(CONFIG)),)
GENERATED += $(B)/_native.abi3.so
endif
all: $(GENERATED)

$(B)/poolctl.bash $(B)/_poolctl: $(B)/poolctl
	$(call say,GEN,$@)$< help --completion $(if $(filter %.bash,$@),bash,zsh) > $@

$(B)/grafana-dashboard.json: tools/exporter/monitoring/dashboard.py
	$(call say,GEN,$@)python3 $< > $@

$(PYTHON_ABI): client/python/gen/abi.py client/gpool.h $(wildcard client/gpool/*.h)
	$(call say,GEN,$@)python3 $< client/gpool.h > $(B)/_abi.py && mv $(B)/_abi.py $@

.PHONY: install uninstall
install: all ## install below prefix and sysconfdir
	$(Q)rm -f $(B)/*.pc && $(MAKE) --no-print-directory $(B)/gpool.pc $(B)/gpool-lora.pc
	$(INSTALL) -d $(DESTDIR)$(sbindir) $(DESTDIR)$(bindir) $(DESTDIR)$(libdir)/pkgconfig $(DESTDIR)$(includedir)/gpool \
		$(DESTDIR)$(libdir)/gpool $(DESTDIR)$(sysconfdir)/gpool
	$(INSTALL) -m 755 $(B)/gpoold $(DESTDIR)$(sbindir)/
	$(INSTALL) -m 644 $(B)/gpoold-agent.so $(DESTDIR)$(libdir)/gpool/gpoold-agent.so~
	mv -f $(DESTDIR)$(libdir)/gpool/gpoold-agent.so~ $(DESTDIR)$(libdir)/gpool/gpoold-agent.so
	$(INSTALL) -m 755 $(addprefix $(B)/,$(TOOL_NAMES)) $(DESTDIR)$(bindir)/
	for name in $(SHARED); do $(INSTALL) -m 644 $(B)/$$name.so $(DESTDIR)$(libdir)/$$name.so.$(VERSION) && \
		ln -sfn $$name.so.$(VERSION) $(DESTDIR)$(libdir)/$$name.so.$(SOVERSION) && \
		ln -sfn $$name.so.$(SOVERSION) $(DESTDIR)$(libdir)/$$name.so && $(INSTALL) -m 644 $(B)/$$name.a $(DESTDIR)$(libdir)/ || exit 1; done
	$(INSTALL) -m 644 $(B)/libgpool_torch.so $(DESTDIR)$(libdir)/
	$(INSTALL) -m 644 $(B)/gpool.pc $(B)/gpool-lora.pc $(DESTDIR)$(libdir)/pkgconfig/
	$(INSTALL) -m 644 client/gpool.h client/torch/gpool_torch.h $(DESTDIR)$(includedir)/
	$(INSTALL) -m 644 client/gpool/*.h $(DESTDIR)$(includedir)/gpool/
	$(foreach s,$(MANDIRS),$(if $(call man_pages,$(s)),$(INSTALL) -d $(DESTDIR)$(mandir)/man$(s) && \
		$(INSTALL) -m 644 $(call man_pages,$(s)) $(DESTDIR)$(mandir)/man$(s)/ &&)) true
	$(INSTALL) -d $(DESTDIR)$(COMPLETION_DIR) $(DESTDIR)$(ZSH_DIR)
	$(INSTALL) -m 644 $(B)/poolctl.bash $(DESTDIR)$(COMPLETION_DIR)/poolctl
	$(INSTALL) -m 644 $(B)/_poolctl $(DESTDIR)$(ZSH_DIR)/
	$(if $(TRACES),$(INSTALL) -d $(DESTDIR)$(TRACE_DIR) && $(INSTALL) -m 644 $(TRACES) $(DESTDIR)$(TRACE_DIR)/)
	$(INSTALL) -d $(DESTDIR)$(SYSTEMD_DIR) $(DESTDIR)$(SYSUSERS_DIR) $(DESTDIR)$(TMPFILES_DIR)
	for unit in $(UNITS); do sed 's|@sbindir@|$(sbindir)|g; s|@bindir@|$(bindir)|g' tools/packaging/systemd/$$unit.in > $(B)/$$unit && \
		$(INSTALL) -m 644 $(B)/$$unit $(DESTDIR)$(SYSTEMD_DIR)/ || exit 1; done
	$(INSTALL) -m 644 tools/packaging/systemd/gpool.sysusers $(DESTDIR)$(SYSUSERS_DIR)/gpool.conf
	$(INSTALL) -m 644 tools/packaging/systemd/gpool.tmpfiles $(DESTDIR)$(TMPFILES_DIR)/gpool.conf
	$(INSTALL) -m 755 tools/packaging/systemd/gpool-pools.sh $(DESTDIR)$(prefix)/share/gpool/
	$(INSTALL) -d $(DESTDIR)$(MONITORING_DIR)
	$(INSTALL) -m 644 $(MONITORING) $(DESTDIR)$(MONITORING_DIR)/
	$(INSTALL) -d $(DESTDIR)$(pythondir)/gpool
	$(INSTALL) -m 644 $(sort $(wildcard client/python/gpool/*.py) $(PYTHON_ABI)) $(wildcard client/python/gpool/*.pyi) \
		client/python/gpool/py.typed $(B)/_native.abi3.so $(DESTDIR)$(pythondir)/gpool/
	$(INSTALL) -d $(DESTDIR)$(pythondir)/gpool/vllm
	$(INSTALL) -m 644 $(wildcard client/python/gpool/vllm/*.py) $(DESTDIR)$(pythondir)/gpool/vllm/
	test -e $(DESTDIR)$(sysconfdir)/gpool/gpoold.conf || \
		$(INSTALL) -m 644 agent/config/gpoold.conf $(DESTDIR)$(sysconfdir)/gpool/

uninstall: ## remove installed files, except the configuration
	rm -f $(DESTDIR)$(sbindir)/gpoold $(DESTDIR)$(libdir)/gpool/gpoold-agent.so $(addprefix $(DESTDIR)$(bindir)/,$(TOOL_NAMES)) \
		$(addprefix $(DESTDIR)$(libdir)/,$(foreach s,$(SHARED),$(s).so.$(VERSION) $(s).so.$(SOVERSION) $(s).so $(s).a) libgpool_torch.so) \
		$(addprefix $(DESTDIR)$(libdir)/pkgconfig/,gpool.pc gpool-lora.pc) \
		$(DESTDIR)$(includedir)/gpool.h $(DESTDIR)$(includedir)/gpool_torch.h \
		$(DESTDIR)$(COMPLETION_DIR)/poolctl $(DESTDIR)$(ZSH_DIR)/_poolctl $(addprefix $(DESTDIR)$(TRACE_DIR)/,$(notdir $(TRACES))) \
		$(addprefix $(DESTDIR)$(SYSTEMD_DIR)/,$(UNITS)) $(DESTDIR)$(SYSUSERS_DIR)/gpool.conf $(DESTDIR)$(TMPFILES_DIR)/gpool.conf \
		$(DESTDIR)$(prefix)/share/gpool/gpool-pools.sh \
		$(addprefix $(DESTDIR)$(MONITORING_DIR)/,$(notdir $(MONITORING))) \
		$(foreach s,$(MANDIRS),$(addprefix $(DESTDIR)$(mandir)/man$(s)/,$(notdir $(call man_pages,$(s)))))
	rm -rf $(DESTDIR)$(pythondir)/gpool $(DESTDIR)$(includedir)/gpool
	rmdir $(DESTDIR)$(libdir)/gpool 2>/dev/null || true
	rmdir $(DESTDIR)$(MONITORING_DIR) $(DESTDIR)$(TRACE_DIR) $(dir $(DESTDIR)$(TRACE_DIR)) 2>/dev/null || true

# ---- packaging ----

.PHONY: dist deb wheel gpu-bundle clean
dist: ## pack the committed source as build/gpool-VERSION.tar.gz
	@mkdir -p build
	$(call say,DIST,build/gpool-$(VERSION).tar.gz)git archive --format=tar --prefix=gpool-$(VERSION)/ HEAD | \
		gzip -9 -n > build/gpool-$(VERSION).tar.gz

deb: ## build Debian packages of the committed source in build/deb/; needs debhelper and fakeroot
	rm -rf build/deb && mkdir -p build/deb/gpool-$(VERSION)
	git archive --format=tar HEAD | tar -x -C build/deb/gpool-$(VERSION)
	cp -r build/deb/gpool-$(VERSION)/tools/packaging/debian build/deb/gpool-$(VERSION)/
	cd build/deb/gpool-$(VERSION) && dpkg-buildpackage --no-sign --build=binary
	@ls build/deb/*.deb

# $(PYTHON_ABI) is among the sources of the package.
wheel: $(LIBRARIES) $(B)/_native.abi3.so $(PYTHON_ABI) ## build the Python package with its libraries: dist/gpool-VERSION-cp39-abi3-*.whl
	$(Q)rm -f dist/gpool-$(VERSION)-*.whl
	$(call say,WHEEL,dist)tools/build/wheel $(B) dist && ls dist/gpool-$(VERSION)-*.whl

gpu-bundle: all $(addprefix $(B)/tests/,$(GPU_TESTS)) ## collect the GPU tests in a directory for a machine with a GPU; run ./run there
	$(Q)tools/build/bundle.sh $(B) gpu-bundle $(GPU_TESTS)

clean: ## remove build/, dist/, gpu-bundle/ and the generated files of the Python package
	rm -rf build dist gpu-bundle $(PYTHON_ABI) $(PYTHON_NATIVE)
