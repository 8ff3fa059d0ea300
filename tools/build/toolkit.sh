#!/bin/sh
# toolkit.sh - install NVIDIA's compiler and headers from PyPI below build/, for a machine without the CUDA toolkit.
#
# usage: toolkit.sh      build/cuda is then a link to the folder with bin/nvcc and include/cuda.h; 350 MB
#
# `make test` runs it, because the driver's double needs the headers, and its tests the kernels. If the packages cannot
# be installed, it prints a note and exits with status 0: the build then omits the kernels.
set -eu
cd "$(dirname -- "$0")/../.."
list=tools/build/toolkit.txt folder=build/toolkit

if [ -x build/cuda/bin/nvcc ] && cmp -s $list $folder/installed.txt; then
    exit 0
fi
echo "toolkit: installing NVIDIA's compiler and headers from PyPI into build/, because the CUDA toolkit is not installed"
rm -rf $folder build/cuda
mkdir -p build
# Use Debian's interpreter, whose venv module is in packages.txt; the first one in $PATH may be another.
python=$(PATH=/usr/bin:$PATH command -v python3)
if ! { "$python" -m venv $folder && $folder/bin/pip install -q --disable-pip-version-check --no-deps -r $list; }; then
    echo "toolkit: cannot install the packages of $list; see the message above. Without them, install the CUDA toolkit" \
        "and set CUDA_HOME; tests that need it fail" >&2
    rm -rf $folder
    exit 0
fi
cp $list $folder/installed.txt
ln -sfn "$(cd build && echo toolkit/lib/python3.*/site-packages/nvidia/cu13)" build/cuda
