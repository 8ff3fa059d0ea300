#!/bin/sh
# gpool-pools.sh - print a first configuration for this machine: one pool for each NVIDIA GPU that the driver lists, or,
# without a GPU, a pool of host memory for trying gpool.
set -u

cat <<'END'
# The first installation of gpool created this file for this machine; later installations do not change it.
# gpoold.conf(5) describes all keys, 'gpoold --print-config' prints them with their defaults, and 'poolctl doctor' checks
# the machine.

front_user = "gpool-front";

END
gpus=0
for gpu in /proc/driver/nvidia/gpus/*/; do
    [ -d "$gpu" ] && gpus=$((gpus + 1))
done

echo 'pools = ('
if [ "$gpus" -eq 0 ]; then
    cat <<'END'
    # The driver listed no GPU, so this pool uses host memory. A pool on a GPU has these values instead:
    # backend = "cuda"; device = "0"; size = "90%"; page_size = "2MB";
    { name = "gpu0"; backend = "host"; size = "512MiB"; page_size = "512KB"; }
END
fi
gpu=0
while [ "$gpu" -lt "$gpus" ]; do
    comma=
    [ $((gpu + 1)) -lt "$gpus" ] && comma=,
    printf '    { name = "gpu%d"; backend = "cuda"; device = "%d"; size = "90%%"; page_size = "2MB"; }%s\n' "$gpu" "$gpu" "$comma"
    gpu=$((gpu + 1))
done
echo ');'
