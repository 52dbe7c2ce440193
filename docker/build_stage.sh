#!/usr/bin/env bash
# The Dockerfile's build stage, on the machine that builds: the image's layers as folders in /stages, from the sources
# in the current folder. Its variables are the Dockerfile's build arguments.
set -euo pipefail

if [ "${TARGETARCH:-arm64}" != arm64 ]; then
    echo "this image is for linux/arm64: build it with --platform linux/arm64" >&2
    exit 2
fi
case "${VLLM_CPU_ARM_BF16,,}" in
    1 | true | on | yes | 0 | false | off | no) ;;
    *)
        echo "VLLM_CPU_ARM_BF16 is true or false, not ${VLLM_CPU_ARM_BF16}" >&2
        exit 2
        ;;
esac
if [ -n "${max_jobs}" ]; then export CMAKE_BUILD_PARALLEL_LEVEL="${max_jobs}"; fi
if [ -z "${SOURCE_DATE_EPOCH}" ]; then unset SOURCE_DATE_EPOCH; fi
read -ra options <<<"${ARMBUILD_OPTIONS}"

"python${PYTHON_VERSION}" -m venv /build
export PATH="/build/bin:${PATH}"
pip install --quiet --no-cache-dir --config-settings=wheel.cmake=false '.[build]'
armbuild docker . --platform linux/arm64 --python "${PYTHON_VERSION}" ${options[@]+"${options[@]}"} \
    --output /image.tar
python -m armbuild.image.stages /image.tar /stages
mv /stages/0/home/armllm /stages/home # where it lies already, COPY --chown of some engines leaves it to root
rm -r /image.tar /var/cache/armbuild
