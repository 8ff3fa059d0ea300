#!/bin/sh
# gpool-pools.sh - print a first configuration for this machine: one pool for each NVIDIA GPU that the driver lists, or,
# without a GPU, a pool of host memory for trying gpool.
set -u

cat <<'END'
# Generated for this machine when gpool was installed; later installations do not change it. gpoold.conf(5) describes all
# keys, 'gpoold --print-config' prints them with their defaults, and 'poolctl doctor' checks this machine.

front_user = "gpool-front";

END
gpus=0
for gpu in /proc/driver/nvidia/gpus/*/; do
    [ -d "$gpu" ] && gpus=$((gpus + 1))
done

echo 'pools = ('
if [ "$gpus" -eq 0 ]; then
    cat <<'END'
    # No GPU was found, so the pool uses host memory. For a GPU: backend = "cuda"; device = "0"; size = "90%";
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
