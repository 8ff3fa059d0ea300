# bench-peers: programs that play workloads on an allocator, one for each allocator; and the double of NVIDIA's runtime
# library. tools/bench/peers/peers.sh builds the programs that need packages of other projects.
PEER_OBJ := $(call obj,$(wildcard tools/bench/peers/*.c))
$(PEER_OBJ): ALL_CFLAGS += -Iclient
$(B)/peers/play.o: $(B)/obj/tools/bench/peers/play.o
	@mkdir -p $(@D)
	$(Q)cp $< $@
$(B)/peers/play-gpool $(B)/peers/play-block: $(B)/peers/play-%: $(B)/obj/tools/bench/peers/subject_%.o $(B)/peers/play.o $(B)/libtools.a $(B)/libgpool.a
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(CLIENT_LIBS)
$(B)/peers/play-heap: $(B)/obj/tools/bench/peers/subject_heap.o $(B)/peers/play.o $(B)/libtools.a
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -o $@ $^ -ldl

RUNTIME_OBJ := $(B)/obj/tests/driver/runtime/runtime.o
$(B)/tests/driver/libcudart-double.so: $(RUNTIME_OBJ) $(B)/tests/driver/libcuda.so.1 tests/driver/runtime/runtime.map
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libcudart-double.so \
		-Wl,--version-script=tests/driver/runtime/runtime.map -o $@ $(RUNTIME_OBJ) $(B)/tests/driver/libcuda.so.1

PEERS ?= build/peers
ENGINES_FOLDER ?= build/engines
.PHONY: peer-heaps peer-programs bench-peers
peer-heaps: all $(addprefix $(B)/peers/play-,block heap)
peer-programs: peer-heaps driver-double $(B)/tests/driver/libcudart-double.so $(B)/peers/play-gpool

bench-peers: peer-programs ## measure other projects' allocators and block managers beside gpool, PEERS_ARGS=; installs 6 GB
	$(Q)CONFIG=$(CONFIG) tools/bench/peers/peers.sh $(PEERS) $(ENGINES_FOLDER) $(B) '$(abspath $(CUDA_INCLUDE))'
	$(Q)PEERS='$(abspath $(PEERS))' ENGINES='$(abspath $(ENGINES_FOLDER))' CONFIG=$(CONFIG) $(PYTHON) tools/bench/peers/peers.py $(PEERS_ARGS)
