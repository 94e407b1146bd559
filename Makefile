# make             build train_gpt and the tools; make NAME (train_gpt, tokenize, report ...) builds one of them
# make quickstart  install what is missing, make a data set, train, sample, report   (TEXT=my.txt: your own text)
# make test        install what is missing, build, run every test that needs no GPU; sweeps over layouts are sampled
# make test-long   the same with every case of every sweep
# make bench       measure this trainer beside its peers
# make bench-gpu   build, check and time everything on one GPU, in two parts of under nine minutes: bench/results/h200-*.json and a table
# make gpu-programs  the programs that bench-gpu runs, for a machine with an H100 or H200 and no compiler: build-sm90/programs/, under 64 MiB
# make test-aarch64  a part of the suite for another processor, under qemu-user (on Debian it installs the packages)
# make asan tsan   the whole suite with the address and undefined, or the thread sanitizer
# make fuzz        every reader of foreign bytes, SECONDS_EACH=10; make fuzz-long: ten minutes each
# make lint        sizes, folders, format, warnings as errors with gcc and clang, cppcheck; make format mends the format
# make cuda-check  registers and spills of every CUDA kernel for sm_90a (matmul_sm80.cu: for sm_80), the table of SASS (needs nvcc)
# make size        lines per folder
# make install     train_gpt, the tools as gpt-tokenize, gpt-report ..., man pages and completions of bash to $(PREFIX);
#                  make uninstall removes them
# make clean       remove what was built; run/ stays
#
# A program is built as build/NAME and linked as ./NAME; build/bin has links with the names that `make install` gives
# (train_gpt, gpt-tokenize, gpt-report ...), which documents use: PATH=$PWD/build/bin:$PATH is as good as an installation.
#
# Variables: CC=clang, CONFIG=asan|tsan|debug|mpich (own folder build-CONFIG), WERROR=-Werror, CFLAGS, CPPFLAGS, LDFLAGS, PREFIX, DESTDIR, PEERS (of make bench)
#            MPICC=/path/to/mpicc: the MPI to build against, when it is not the mpicc of PATH; MPI=0: none
#            CUDA=1 or 0: kernels for GPUs in train_gpt, or none (default: where nvcc and a GPU are); NVCC=/path/to/nvcc, NVCC_FLAGS
MAKEFLAGS += -r
.DELETE_ON_ERROR: # else what a failed command left would count as made
comma := ,
SHELL := /bin/bash
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
# The C++ compiler that belongs to CC builds the CUDA kernels for the tests. A folder such as /opt/gcc-13/ keeps its name.
cxx_of = $(subst gcc,g++,$(subst clang,clang++,$(1)))
CXX := $(if $(findstring clang,$(CC))$(findstring gcc,$(CC)),$(foreach w,$(CC),$(if $(findstring /,$w),$(dir $w))$(call cxx_of,$(notdir $w))),g++)
CONFIG ?= release
B := build$(if $(filter release,$(CONFIG)),,-$(CONFIG))

# Newer clang warns of a conversion where an enumerator is used among doubles; gcc does not.
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
    $(if $(findstring clang,$(CC)),-Wno-enum-float-conversion) $(WERROR)
OPT_release := -O3
OPT_asan := -DGPT_DEBUG -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT_tsan := -DGPT_DEBUG -O1 -fsanitize=thread
OPT_debug := -DGPT_DEBUG -O0
OPT_mpich := $(OPT_release)
OPT_sm90 := $(OPT_release)
OPT_fuzz := -DGPT_DEBUG -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
CFLAGS ?=

# MPI: the flags that its compiler wrapper adds. Open MPI prints them for --showme; MPICH and its relatives print a whole command for -show.
MPICC ?= $(if $(filter mpich,$(CONFIG)),mpicc.mpich,mpicc)
# The UCX that Open MPI 5 is linked with leaves a thread at the end, which ThreadSanitizer reports.
MPI ?= $(if $(filter tsan,$(CONFIG)),0)
ifneq ($(MPI),0)
MPI_SAYS := $(shell { $(MPICC) --showme:compile && $(MPICC) --showme:link || $(MPICC) -show; } 2>/dev/null)
endif
MPI_CFLAGS := $(patsubst -I%,-isystem %,$(filter -I% -D%,$(MPI_SAYS)))
MPI_LIBS := $(if $(MPI_SAYS),-Wl$(comma)--as-needed $(filter -L% -l% -Wl%,$(MPI_SAYS)))
# Collectives of GPUs are linked only into programs with CUDA kernels, real or emulated.
COLL_CUDA := $(filter-out %_absent.c,$(wildcard parallel/comm/coll_device*.c parallel/comm/coll_nccl*.c)) parallel/comm/nccl.c
COLL_MPI := $(if $(MPI_SAYS),mpi mpi_flight mpi_job,mpi_absent)

# CUDA kernels take a minute to build, so they are built only on a machine with a GPU; CUDA=1 builds them on a node without one.
# They are compiled for sm_80, whose PTX newer devices translate, and for sm_90a. The runtime is linked statically; all other libraries
# are loaded when a device was found.
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA ?= $(if $(wildcard /dev/nvidiactl /dev/dxg),1,0)
NVCC_FLAGS ?= -gencode 'arch=compute_80,code=[sm_80,compute_80]' -gencode arch=compute_90a,code=sm_90a
# *_sm90.cu uses instructions that only Hopper has. cuda-check sets NVCC_SM80: it examines *_sm80.cu as compiled for sm_80.
NVCC_SM90 := -gencode arch=compute_90a,code=sm_90a
NVCC_SM80 = $(NVCC_FLAGS)
# folder of the objects that nvcc makes
CUDA_B ?= $(B)/cuda
WITH_CUDA := $(and $(NVCC),$(filter-out 0,$(CUDA)),$(filter release mpich,$(CONFIG)))
CUDA_LIBS = -L$(abspath $(dir $(shell readlink -f $(NVCC)))../lib64) -lcudart_static -lrt

# -g1 has names and lines for stack traces and profiles. -g adds variables for a debugger; it makes the build a sixth slower.
ALL_CFLAGS := -std=c11 -D_GNU_SOURCE $(if $(filter debug,$(CONFIG)),-g,-g1) $(OPT_$(CONFIG)) -ffp-contract=off -pthread -I. -MMD -MP $(WARN) $(CPPFLAGS) $(CFLAGS)
LDLIBS := $(LDFLAGS) -ljansson -lm -ldl -pthread $(MPI_LIBS)
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
ARCH := $(firstword $(subst -, ,$(MACHINE)))
# With a cross compiler, such as aarch64-linux-gnu-gcc, ar, ld and objcopy have the same prefix, but no version.
CROSS := $(foreach w,$(CC),$(addprefix $(if $(findstring /,$w),$(dir $w)),$(patsubst %gcc,%,$(filter %-gcc,$(subst -gcc-,-gcc ,$(notdir $w))))))
# g++ and clang++ compile CUDA sources without exceptions and without the C++ library, so that the C compiler can link them.
# -Wno-sign-conversion: indices of threads are unsigned in CUDA, indices of elements are signed; only clang++ warns of that.
CXX_WARN := $(filter-out -Wstrict-prototypes -Wmissing-prototypes,$(WARN)) -Wmissing-declarations -Wno-unknown-pragmas -Wno-sign-conversion
# -fno-tree-vectorize: gcc 12 for aarch64 crashes on one of the loops, and emulated threads hardly have loops to vectorize.
CXX_FLAGS = -fno-tree-vectorize -std=c++17 \
    $(filter-out -std=c11 $(WARN),$(call quick,$(ALL_CFLAGS))) $(CXX_WARN) \
    -fno-exceptions -fno-rtti -fno-threadsafe-statics

# layers/*.c is compiled once per instruction set; each set becomes one object that exports only kernels_cpu_<set>. objcopy
# renames its symbols, which is impossible with -flto. SETS=portable builds no other set.
SETS := portable $(if $(filter x86_64,$(ARCH)),avx2 avx512 avx512_bf16 avx512_amx)
SETS_FILE := layers/cpu/sets_$(if $(filter-out portable,$(SETS)),$(ARCH),any).c
FLAGS_avx2 := -mavx2 -mfma
FLAGS_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512
FLAGS_avx512_bf16 := $(FLAGS_avx512) -mavx512bf16
FLAGS_avx512_amx := $(FLAGS_avx512_bf16) -mamx-tile -mamx-bf16
# avx512_amx compiles only the files TILED itself and takes all others from avx512_bf16. FLOATS is compiled once for avx512, avx512_bf16 and
# avx512_amx.
TILED := layers/matmul.c layers/matmul_tile.c layers/peak.c $(wildcard layers/attention*.c)
FLOATS := layers/matmul_floats.c
set_of = $(if $(filter $(FLOATS),$(2)),$(patsubst avx512_%,avx512,$(1)),$(if $(filter $(TILED),$(2)),$(1),$(1:%_amx=%_bf16)))
LAYERS := $(wildcard layers/*.c)
CUDA_ALWAYS := layers/cuda/kernels_cuda_absent.c layers/cuda/kernels_sizes.c
LIB := $(wildcard base/*.c) $(CUDA_ALWAYS) layers/cpu/kernels_cpu.c layers/cpu/embedding_order.c layers/cpu/rope_table.c $(SETS_FILE) $(wildcard data/*.c) \
    $(filter-out parallel/comm/coll_mpi% $(COLL_CUDA),$(wildcard parallel/*/*.c)) \
    $(COLL_MPI:%=parallel/comm/coll_%.c)
# Fuzzers run parsers only: they need no kernels, and of the planner only the descriptions of machines.
ifeq ($(CONFIG),fuzz)
LIB := $(filter base/% data/%,$(LIB)) parallel/mesh/mesh.c $(CUDA_ALWAYS) \
    $(addprefix parallel/plan/,calibrate_cost.c gpu_matmul.c machine.c machine_file.c quantity.c work.c)
SETS :=
endif
# TESTED='word ...': builds only the files in which one of these words is part of a test's name; ^word: the name begins with it.
TESTED ?= .
TESTS := $(shell grep -lE "^TEST\w*.($(subst $() ,|,$(patsubst \w*^%,%,$(addprefix \w*,$(TESTED)))))" tests/test*.c; grep -L ^TEST tests/test*.c) \
    tests/mesh_run.c tests/theory.c tests/recording.c
# In the tests an emulator runs the CUDA kernels on the CPU (tests/emu/), with or without a CUDA toolkit.
FIBER := $(firstword $(wildcard tests/emu/fiber_$(ARCH).c) tests/emu/fiber_any.c)
CUDA_C := $(filter-out $(CUDA_ALWAYS),$(wildcard layers/cuda/*.c)) $(COLL_CUDA)
EMU := $(filter-out tests/emu/fiber_%,$(wildcard tests/emu/*.c)) $(FIBER) $(CUDA_C)
CUDA_SOURCES := $(wildcard layers/*.cu layers/cuda/*.cu)
# EMULATED='FILE.cu ...': a sanitizer build compiles only these kernels and tests in CUDA. It takes the others, and kernels with tile
# registers, from build/, since its tests do not run them.
emulated = $(foreach f,$(1),$(if $(filter $(f),$(EMULATED)),$(B),build)/emu/$(f:%.cu=%.o))
CUDA_TESTS := $(wildcard tests/test*.cu) tests/cuda_probes_sm90.cu
AMX_TILES := $(if $(filter undefined,$(origin EMULATED)),$(B),build)/amx_tiles.o
EMULATED ?= $(CUDA_SOURCES) $(CUDA_TESTS)
EMU_OBJECTS = $(call obj,$(EMU)) $(call emulated,$(CUDA_SOURCES))
EMU_TESTS = $(call emulated,$(CUDA_TESTS))
CUDA_OBJECTS = $(call obj,$(CUDA_C)) $(CUDA_SOURCES:%.cu=$(CUDA_B)/%.o)
# bench_gpu is a program of several files. It is linked with the CUDA kernels, or with those of the emulator.
BENCH_GPU := $(wildcard tools/bench_gpu*.c)
TOOLS := $(patsubst tools/%.c,%,$(filter-out $(BENCH_GPU),$(wildcard tools/*.c)))
FAKE_LIBRARY := $(B)/tests/fake_library/libfake.so.1
PROGRAMS := train_gpt $(TOOLS)
# Programs for users, under their installed names: no benchmarks and no programs of the tests.
USER_TOOLS := $(filter-out bench_% logits,$(TOOLS))
COMMANDS := train_gpt $(USER_TOOLS:%=gpt-%)
obj = $(patsubst %.c,$(B)/%.o,$(1))

all: $(PROGRAMS:%=$(B)/%) $(if $(filter release,$(CONFIG)),train_gpt $(USER_TOOLS)) $(COMMANDS:%=$(B)/bin/%)
$(PROGRAMS): %: $(B)/%
	@ln -sf $(B)/$@ $@
$(B)/bin/train_gpt: $(B)/train_gpt
	@mkdir -p $(@D) && ln -sf ../train_gpt $@
$(B)/bin/gpt-%: $(B)/%
	@mkdir -p $(@D) && ln -sf ../$* $@

$(B)/libgpt.a: $(call obj,$(LIB)) $(SETS:%=$(B)/kernels_%.o) $(B)/mpi.txt
	@rm -f $@ && $(CROSS)ar rcs $@ $(filter %.o,$^)
TRAIN := train_gpt.c
$(B)/train_gpt: $(call obj,$(TRAIN)) $(if $(WITH_CUDA),$(CUDA_OBJECTS)) $(B)/libgpt.a $(B)/cuda.txt
	$(CC) $(ALL_CFLAGS) -o $@ $(filter-out %.txt,$^) $(if $(WITH_CUDA),$(CUDA_LIBS)) $(LDLIBS)
$(CUDA_B)/train_gpt: $(call obj,$(TRAIN)) $(CUDA_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(CUDA_LIBS) $(LDLIBS)
# The tests on a device: its kernels are those of nvcc. Tests called cuda_... run there.
$(CUDA_B)/run_tests: $(call obj,$(TESTS) tests/device.c) $(CUDA_OBJECTS) $(B)/amx_tiles.o $(B)/libgpt.a | $(CUDA_B)/train_gpt $(CUDA_B)/timeline
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(CUDA_LIBS) $(LDLIBS)
# These tests also run timeline, in the folder of the tests.
$(CUDA_B)/timeline: $(B)/timeline
	@mkdir -p $(@D) && ln -sf $(abspath $<) $@
# Prints what instructions of compute capability 9.0 do, one line each (tests/cuda_probes.h).
$(CUDA_B)/probes: $(CUDA_B)/tests/cuda_probes_main_sm90.o $(CUDA_B)/tests/cuda_probes_sm90.o $(CUDA_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(CUDA_LIBS) $(LDLIBS)
$(CUDA_B)/bench_gpu: $(call obj,$(BENCH_GPU)) $(CUDA_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(CUDA_LIBS) $(LDLIBS)
# Programs for the tests, with the emulated GPU.
$(B)/train_gpt_emu: $(call obj,$(TRAIN)) $(EMU_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
$(B)/bench_gpu_emu: $(call obj,$(BENCH_GPU)) $(EMU_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
$(TOOLS:%=$(B)/%): $(B)/%: $(B)/tools/%.o $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
# The tests run programs of their own build. TEST_PROGRAMS='NAME ...': only those that the files of TESTED run.
TEST_PROGRAMS ?= $(PROGRAMS) $(COMMANDS:%=bin/%) train_gpt_emu bench_gpu_emu ranks_job $(FAKE_LIBRARY:$(B)/%=%)
$(B)/run_tests: $(call obj,$(TESTS)) $(EMU_OBJECTS) $(EMU_TESTS) $(AMX_TILES) $(B)/libgpt.a | $(TEST_PROGRAMS:%=$(B)/%)
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
# A library that tests load at run time, like NVIDIA's libraries: it is built without sanitizers.
$(FAKE_LIBRARY): tests/fake_library.c
	@mkdir -p $(@D)
	$(CC) -std=c11 $(WARN) -shared -fPIC -o $@ $<
$(B)/ranks_job: $(B)/tests/ranks_job.o $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

define set_rules
$(B)/$(1)/layers/%.o: layers/%.c Makefile
	@mkdir -p $$(@D)
	$$(CC) $$(filter-out -flto%,$$(ALL_CFLAGS)) $$(FLAGS_$(1)) -c -o $$@ $$<
$(B)/kernels_$(1).o: $(foreach f,$(LAYERS),$(B)/$(call set_of,$(1),$(f))/$(f:%.c=%.o))
	@$(CROSS)ld -r -o $$@ $$^
	@$(CROSS)objcopy --redefine-sym kernels_table=kernels_cpu_$(1) --keep-global-symbol=kernels_cpu_$(1) $$@
endef
$(foreach s,$(SETS),$(eval $(call set_rules,$(s))))
# Tests are compiled with -O1, which takes a third of the time. lint compiles them like all other files, because some warnings need
# the optimizer.
quick = $(if $(filter lint-% debug,$(CONFIG)),$(1),$(patsubst -O%,-O1,$(1)))
$(B)/tests/test%.o $(B)/tests/mesh_run.o $(B)/tests/theory.o: \
    ALL_CFLAGS := $(call quick,$(ALL_CFLAGS))
# lint does not need these objects optimized: it compiles the same sources for each set.
$(B)/tiles/%.o: ALL_CFLAGS := $(filter-out -O% -flto%,$(ALL_CFLAGS)) -O1
# For the tests, the users of base/amx.h are compiled with tile registers in plain C.
TILED_TEST := layers/matmul.c layers/matmul_tile.c $(FLOATS) layers/activation.c $(wildcard layers/attention*.c)
TILED_CALLS := matmul matmul_workspace attention_forward attention_backward attention_workspace
$(B)/tiles/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) -Itests/emu/include -DSIMD_WIDE -Wno-psabi $(ALL_CFLAGS) -c -o $@ $<
$(B)/amx_tiles.o: $(TILED_TEST:%.c=$(B)/tiles/%.o)
	@$(CROSS)ld -r -o $@ $^
	@$(CROSS)objcopy $(foreach f,$(TILED_CALLS),--redefine-sym $(f)=$(f)_amx_tiles --keep-global-symbol=$(f)_amx_tiles) $@
$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c -o $@ $<
# Emulated kernels change stacks a million times a second. With ThreadSanitizer, which must be informed of each change, they would
# take a hundred times as long.
$(EMU_OBJECTS) $(EMU_TESTS): ALL_CFLAGS := $(filter-out -fsanitize=thread,$(ALL_CFLAGS))
$(B)/emu/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(CXX) -Itests/emu/include $(CXX_FLAGS) -x c++ -c -o $@ $<
# The output of ptxas on registers and spills is written beside the object. If host code calls a function for devices in a template,
# nvcc compiles the call to exit(1) without an error. Nothing else in these files calls exit, so an object that needs it is refused.
$(CUDA_B)/%.o: %.cu Makefile $(CUDA_B)/nvcc.txt
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O3 $(if $(filter sm90,$(CONFIG)),--compress-mode=size,-lineinfo) -I. -ccbin $(lastword $(CXX)) -Xcompiler -g,-Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics \
	    $(if $(findstring _sm90,$<),$(NVCC_SM90),$(if $(findstring _sm80,$<),$(NVCC_SM80),$(NVCC_FLAGS))) $(NVCC_MORE) -Werror cross-execution-space-call -Xptxas -v -MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$(@:.o=.log) 2>&1 || { cat $(@:.o=.log); exit 1; }
	@! nm -u $@ | grep -qw exit || { echo "$<: a function for devices alone is called on the host, in"; \
	    objdump -drC $@ | awk '/>:$$/ { f = $$0 } /[ \t]exit(-0x4)?$$/ { print f }'; exit 1; }

# If the MPI has changed since the last build, the files that call it are rebuilt; if CUDA was switched on or off, the trainer is.
$(COLL_MPI:%=$(B)/parallel/comm/coll_%.o): ALL_CFLAGS += $(MPI_CFLAGS)
$(COLL_MPI:%=$(B)/parallel/comm/coll_%.o): $(B)/mpi.txt
NOTE :=
$(B)/mpi.txt: SAYS := $(MPI_SAYS)
$(B)/mpi.txt: NOTE := $(if $(MPI_SAYS)$(filter 0,$(MPI)),,note: this build has no MPI, as $(MPICC) is not here (MPICC=/path/to/mpicc))
$(B)/cuda.txt: SAYS := $(WITH_CUDA)
$(CUDA_B)/nvcc.txt: SAYS := $(NVCC) $(NVCC_FLAGS) $(NVCC_MORE)
$(B)/mpi.txt $(B)/cuda.txt $(CUDA_B)/nvcc.txt: always
	@mkdir -p $(@D); echo "$(SAYS)" | cmp -s - $@ || { echo "$(SAYS)" >$@; $(if $(NOTE),echo "$(NOTE)";) }

# The commit is recorded with every run.
COMMIT := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(B)/base/version.o: ALL_CFLAGS += -DCOMMIT='"$(COMMIT)"'
$(B)/base/version.o: $(wildcard $(shell git rev-parse --git-path logs/HEAD 2>/dev/null))

# Each tests/fuzz/fuzz_NAME.c is a fuzzer; they are linked by clang (CONFIG=fuzz CC=clang).
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
$(FUZZERS:%=$(B)/%): $(B)/%: $(B)/tests/fuzz/%.o $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)
fuzzers: $(FUZZERS:%=$(B)/%)

help:
	@sed -n '/^#/!q; s/^# \?//p' Makefile
quickstart:
	@TEXT="$(TEXT)" tools/quickstart.sh
test:
	@tools/setup.sh test
	@$(MAKE) -s -j$$(nproc) all build/run_tests
	@tools/test.sh
test-aarch64:
	@tools/test_aarch64.sh
test-long:
	@TEST_LONG=1 $(MAKE) test
asan tsan:
	@tools/setup.sh build
	@$(MAKE) -s -j$$(nproc) CONFIG=$@ build-$@/run_tests
	TEST_LONG=1 build-$@/run_tests
SECONDS_EACH ?= 10
fuzz-long: SECONDS_EACH := 600
fuzz fuzz-long:
	@tools/setup.sh test
	@$(MAKE) -s -j$$(nproc) CONFIG=fuzz CC=clang fuzzers
	@tools/fuzz.sh $(SECONDS_EACH)
# PEERS='--python /path/to/python --llmc "command with {B} {T}"' also measures other programs (python3 tools/bench.py --help).
bench: $(B)/train_gpt
	python3 tools/bench.py $(PEERS)
	python3 tools/bench_table.py bench/results/train_cpu_avx512_bf16.json --page README.md
	python3 tools/bench_table.py --page docs/benchmarks.md
# Measures everything on one GPU, in two parts of under nine minutes. GPU_BENCH has options, such as '--out FOLDER --text FILE', or
# --rehearse: tiny sizes on the emulated GPU.
bench-gpu:
	python3 tools/bench_gpu.py $(GPU_BENCH)
# These programs need no library but the C library. GPU_PROGRAMS names other programs, such as those of the emulated GPU for a rehearsal.
GPU_PROGRAMS ?= cuda/train_gpt cuda/bench_gpu cuda/run_tests cuda/probes timeline
gpu-programs:
	@$(MAKE) -s CONFIG=sm90 MPI=0 NVCC_FLAGS='$(NVCC_SM90)' LDLIBS='-l:libjansson.a -lm -ldl -pthread' $(GPU_PROGRAMS:%=build-sm90/%)
	@tools/gpu_programs.sh build-sm90/programs $(GPU_PROGRAMS:%=build-sm90/%)
lint:
	@tools/setup.sh test
	@tools/lint.sh
format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
# Compiles the kernels with nvcc for sm_90a (matmul_sm80.cu: for sm_80) in a folder of its own. Checks registers and spills of every
# kernel, the SASS of those that take most of a GPU's time, and that the trainer starts on a machine without CUDA. FACTS=--write
# writes the table of SASS.
NCCL_HEADER = $(wildcard $(dir $(NVCC))../include/nccl.h)
CHECKED = train_gpt run_tests $(patsubst %.cu,%.o,$(wildcard tests/cuda_*.cu)) $(if $(NCCL_HEADER),tests/nccl_headers.o)
cuda-check:
	@$(if $(NVCC),$(MAKE) -s CUDA_B=$(B)/sm90 NVCC_FLAGS='$(NVCC_SM90)' NVCC_SM80='-gencode arch=compute_80$(comma)code=sm_80' NVCC_MORE=--no-compress $(CHECKED:%=$(B)/sm90/%) && \
	    tools/cuda_check.sh $(B)/sm90 && python3 tools/cuda_facts.py $(B)/sm90 --nvcc $(NVCC) $(FACTS),echo "cuda-check: no nvcc here")
size:
	@for folder in . base layers layers/cpu layers/cuda data parallel/comm parallel/mesh parallel/step parallel/plan parallel/train tools tests tests/emu; do \
	    printf '%-14s %6d lines\n' $$folder $$(cat $$folder/*.[ch] $$folder/*.cu $$folder/*.cuh 2>/dev/null | wc -l); done
PREFIX ?= /usr/local
BIN := $(DESTDIR)$(PREFIX)/bin
MAN := $(DESTDIR)$(PREFIX)/share/man/man1
COMPLETIONS := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
$(B)/man/%.1: $(B)/bin/%
	@mkdir -p $(@D) && $< --help=man >$@
install: all $(COMMANDS:%=$(B)/man/%.1)
	install -d "$(BIN)" "$(MAN)" "$(COMPLETIONS)"
	install $(COMMANDS:%=$(B)/bin/%) "$(BIN)"
	install -m 644 $(COMMANDS:%=$(B)/man/%.1) "$(MAN)"
	for name in $(COMMANDS); do install -m 644 tools/completion.bash "$(COMPLETIONS)/$$name"; done
uninstall:
	rm -f $(foreach name,$(COMMANDS),"$(BIN)/$(name)" "$(MAN)/$(name).1" "$(COMPLETIONS)/$(name)")
clean:
	rm -rf build build-* $(PROGRAMS)

.PHONY: all always help quickstart test test-aarch64 test-long bench bench-gpu gpu-programs asan tsan fuzz fuzz-long fuzzers lint format cuda-check size install uninstall clean
-include $(shell find $(B) -name '*.d' 2>/dev/null)
