#!/bin/sh
# Compiles ten CUDA files and four host files of PyTorch for two GPUs, then for a second instruction set, with nvcc from
# NVIDIA's wheels, in the system that setup.sh created; 5 GB, half an hour on one core.
#
#   sudo tools/trixie/cuda.sh FOLDER [options of torchtailor build ...] > files.tsv
#
# One line per file and variant: variant, file, seconds, the GPU code inside, and whether it was a ccache hit. It starts
# with an empty cache each time; the toolkit is fetched once.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${1:?"usage: $0 FOLDER [options]"}
shift
case $(uname -m) in
    aarch64) one=armv8_2 other=armv9 ;;
    *) one=avx2 other=avx512 ;;
esac
name=pytorch212-python313-cuda13_0
kernels="ActivationHardshrinkKernel.cu CrossKernel.cu FunctionOfAMatrixUtilsKernel.cu Im2Col.cu RenormKernel.cu
    Repeat.cu RreluWithNoise.cu StepKernel.cu bessel_j0.cu int8mm.cu"
hosts="Equal.cpp ReduceOps.cpp Sort.cpp TensorModeKernel.cpp"
objects=caffe2/CMakeFiles/torch_cuda.dir/__/aten/src/ATen/native/cuda

# Debian's packages of CUDA have an NVTX that CUDA 13 dropped, and a patch for it.
if [ ! -d "$root/src/pytorch-cuda" ]; then
    rm -rf "$root/src/pytorch-cuda.new"
    cp -a "$root/src/pytorch" "$root/src/pytorch-cuda.new"
    chroot "$root" sh -ec 'cd /src/pytorch-cuda.new && patch -s -R -p1 < debian/patches/2300-torch-cuda-no-use-nvtx3.patch'
    mv "$root/src/pytorch-cuda.new" "$root/src/pytorch-cuda"
fi
rm -rf "$root/work/cuda/builds" "$root/work/cuda/ccache"

for file in $kernels $hosts; do set -- "$@" --target "$objects/$file.o"; done
printf 'variant\tfile\tseconds\tGPU code\tccache\n'
for variant in "sm90-$one" "sm80-$one" "sm90-$other"; do
    # Debian has no package of the cuDNN frontend, nor of what flash attention needs.
    answer=$("$here/build.sh" "$root" "$name-$variant" --source /src/pytorch-cuda --work /work/cuda --toolchain wheels --profile minimal \
        --set USE_CUDNN=0 --skip-check disk --json "$@")
    build=$(printf '%s\n' "$answer" | sed -n 's/.*"build": "\(.*\)".*/\1/p')
    printf '%s\n' "$answer" | grep -E '"(ccache|seconds|peak_memory)"' >&2
    for file in $kernels $hosts; do
        seconds=$(awk -F '\t' -v object="$objects/$file.o" '$4 == object { print ($2 - $1) / 1000 }' "$root$build/src/build/.ninja_log")
        cached=$(awk -v file="/$file" '/^# / { here = substr($0, length($0) - length(file) + 1) == file }
            here && /^(direct|preprocessed)_cache_hit$/ { print "hit" } here && /^cache_miss$/ { print "miss" }' "$root$build/ccache-stats.log")
        code=$(chroot "$root" /opt/torchtailor/bin/torchtailor inspect --json "$build/src/build/$objects/$file.o" |
            sed -n 's/.*"name": "\(\(sm\|compute\)_[0-9a-z]*\)".*/\1/p' | sort -u | tr '\n' ' ')
        printf '%s\t%s\t%s\t%s\t%s\n' "$variant" "$file" "$seconds" "${code% }" "$cached"
    done
done
