#!/bin/bash
# peers.sh - install the programs that `make bench-peers` compares gpool with, and build the programs that drive them.
#
# usage: peers.sh FOLDER ENGINES BUILD INCLUDE
#   FOLDER   receives the packages of peers.txt and the programs
#   ENGINES  the virtual environment of tools/build/engines.sh
#   BUILD    the build folder of gpool, with the double of the driver and play.o
#   INCLUDE  the headers of the CUDA toolkit, some of which are not in ENGINES
#
# If a program cannot be installed or built, FOLDER/NAME.missing contains the reason; this is not an error.
set -u
root=$(cd "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
here=$root/tools/bench/peers
folder=$(realpath -m "$1") engines=$(realpath -m "$2") build=$(realpath "$3")
site=$engines/lib/python3.11/site-packages
double=$build/tests/driver
mkdir -p "$folder"
export CPLUS_INCLUDE_PATH=$4

# attempt NAME... COMMAND: run a function; if it fails, write the end of its output to NAME.missing of each NAME.
attempt()
{
    local command=${*: -1} name
    echo "peers: $command" >&2
    if "$command" > "$folder/$command.log" 2>&1; then
        for name in "${@:1:$#-1}"; do rm -f "$folder/$name.missing"; done
    else
        for name in "${@:1:$#-1}"; do
            grep -iE 'error|cannot|no such' "$folder/$command.log" | tail -n 1 | cut -c 1-200 > "$folder/$name.missing"
            [ -s "$folder/$name.missing" ] || echo "$command failed; see $folder/$command.log" > "$folder/$name.missing"
        done
    fi
}

# package NAME - install a package of peers.txt into FOLDER/NAME.
package()
{
    local pinned
    pinned=$(grep "^$1==" "$here/peers.txt") || return 1
    [ "$(cat "$folder/$1.installed" 2>/dev/null)" = "$pinned" ] && return 0
    rm -rf "${folder:?}/$1"
    "$engines/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation --target "$folder/$1" \
        "$pinned" && echo "$pinned" > "$folder/$1.installed"
}

engines()
{
    cmp -s "$root/tools/build/engines.txt" "$engines/engines.txt" || "$root/tools/build/engines.sh" "$engines"
}

torch()
{
    g++ -std=c++20 -O2 -I"$root" -isystem "$site/torch/include" -isystem "$site/nvidia/cu13/include" \
        -c -o "$folder/subject_torch.o" "$here/subject_torch.cpp" &&
        g++ -o "$folder/play-torch" "$build/peers/play.o" "$folder/subject_torch.o" "$build/libtools.a" -Wl,--no-as-needed \
            "$double/libcudart-double.so" "$double/libcuda.so.1" "$site/torch/lib/libc10_cuda.so" "$site/torch/lib/libc10.so" \
            -Wl,-rpath,"$site/torch/lib"
}

rmm()
{
    package librmm-cu13 && package rapids-logger || return 1
    local rmm=$folder/librmm-cu13/librmm logger=$folder/rapids-logger/rapids_logger
    g++ -std=c++17 -O2 -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE -DCCCL_IGNORE_DEPRECATED_CPP_DIALECT -I"$root" \
        -isystem "$rmm/include" -isystem "$rmm/include/rapids" -isystem "$logger/include" -isystem "$site/nvidia/cu13/include" \
        -c -o "$folder/subject_rmm.o" "$here/subject_rmm.cpp" &&
        g++ -o "$folder/play-rmm" "$build/peers/play.o" "$folder/subject_rmm.o" "$build/libtools.a" -Wl,--no-as-needed \
            "$double/libcudart-double.so" "$double/libcuda.so.1" "$rmm/lib64/librmm.so" "$logger/lib64/librapids_logger.so" \
            -Wl,-rpath,"$rmm/lib64:$logger/lib64"
}

# Its extension is linked with -lcuda and -lcudart, for which the wheels of the environment have no files.
kvcached()
{
    mkdir -p "$folder/link"
    ln -sfn "$double/libcuda.so.1" "$folder/link/libcuda.so"
    ln -sfn "$double/libcudart-double.so" "$folder/link/libcudart.so"
    CUDA_HOME=$site/nvidia/cu13 LIBRARY_PATH=$folder/link PATH=$engines/bin:$PATH package kvcached
}

debian()
{
    "$root/tools/build/deps.sh" --quiet peers
}

attempt jemalloc mimalloc debian
attempt vllm engines
attempt torch torch
attempt rmm rmm
attempt kvcached kvcached
