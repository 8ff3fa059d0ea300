"""Constants, structures and calls of gpool.h. Made from it by client/python/gen/abi.py (make docs): do not edit."""

from __future__ import annotations

import ctypes as c
from typing import Any, Dict, List, Optional, Tuple

Text = bytes  # there are fields of that name

GPOOL_VERSION_MAJOR = 0
GPOOL_VERSION_MINOR = 1
GPOOL_VERSION_PATCH = 0
GPOOL_OBJECT_NONE = 18446744073709551615
GPOOL_KV_NO_WATERMARK = 4294967295
GPOOL_KV_GROUP_CACHES_MAX = 16
GPOOL_LORA_NONE = 4294967295
GPOOL_DEVICE_NONE = 4294967295
GPOOL_KV_CACHE = 0
GPOOL_LORA_WEIGHT = 1
GPOOL_TEMP_BUFFER = 2
GPOOL_ACTIVATION = 3
GPOOL_GRADIENT = 4
GPOOL_CONTENTS = 5
GPOOL_LOW = 0
GPOOL_MEDIUM = 1
GPOOL_HIGH = 2
GPOOL_CRITICAL = 3
GPOOL_OPEN_OBSERVER = 1
GPOOL_OPEN_ADMIN = 2
GPOOL_ALLOC_FIRST_FIT = 1
GPOOL_ALLOC_CRITICAL = 2
GPOOL_ALLOC_CONTIGUOUS = 4
GPOOL_ALLOC_NO_EVICT = 8
GPOOL_ALLOC_SPILL = 16
GPOOL_HOLDERS_MAX = 4
GPOOL_STREAM_MANUAL = 1
GPOOL_FENCE_REACHED = 1
GPOOL_FENCE_BY_TIMELINE = 2
GPOOL_FENCE_BY_EVENT = 3
GPOOL_EXPORT_EVENT = 1
GPOOL_SCOPE_FREE = 1
GPOOL_OBJECT_IMMUTABLE = 0
GPOOL_OBJECT_MUTABLE = 1
GPOOL_OBJECT_EPHEMERAL = 2
GPOOL_OBJECT_PINNABLE = 3
GPOOL_OBJECT_PINNED = 1
GPOOL_OBJECT_PRIVATE = 2
GPOOL_OBJECT_DOMAIN_WRITE = 4
GPOOL_OBJECT_ADOPT = 1
GPOOL_OBJECT_CURRENT = 2
GPOOL_OBJECT_OLD = 3
GPOOL_OBJECT_DELETED = 4
GPOOL_RANGE_AWAKE = 1
GPOOL_RANGE_ASLEEP = 2
GPOOL_PAGE_HOLE = 0
GPOOL_PAGE_PARKED = 1
GPOOL_PAGE_BACKED = 2
GPOOL_PAGE_CAPTURED = 1
GPOOL_PAGE_OFFERED = 2
GPOOL_SMALL_SPANS = 0
GPOOL_SMALL_DRIVER = 1
GPOOL_SMALL_PAGES = 2
GPOOL_KV_KEEP = 1
GPOOL_KV_PREFIXES = 2
GPOOL_KV_ADAPTIVE = 4
GPOOL_KV_BF16 = 8
GPOOL_KV_OK = 0
GPOOL_KV_LATER = 1
GPOOL_KV_NEVER = 2
GPOOL_KV_CONTINUES = 1
GPOOL_KV_OFFLOAD_POOL = 1
GPOOL_KV_OFFLOAD_INT8 = 2
GPOOL_KV_RUNNING = 1
GPOOL_KV_PREEMPTED = 2
GPOOL_LORA_AS_FILE = 0
GPOOL_LORA_F16 = 1
GPOOL_LORA_BF16 = 2
GPOOL_LORA_INT8 = 1
GPOOL_LORA_PRIVATE = 2
GPOOL_LORA_REASON_BYTES = 256
GPOOL_LORA_COLD = 0
GPOOL_LORA_LOADING = 1
GPOOL_LORA_HERE = 2
GPOOL_LORA_BATCH_REQUESTS_MAX = 256
GPOOL_EVENT_PRESSURE = 1
GPOOL_EVENT_EVICTION = 2
GPOOL_EVENT_RECLAIM = 3
GPOOL_EVENT_TENANT_LIMIT = 4
GPOOL_EVENT_AGENT_START = 5
GPOOL_EVENT_SESSION_START = 6
GPOOL_EVENT_SESSION_END = 7
GPOOL_EVENT_LEAKED_PIN = 8
GPOOL_EVENT_RELOAD = 9
GPOOL_EVENT_FRONT_RESTART = 10
GPOOL_EVENT_DAMAGE = 11
GPOOL_EVENT_OBJECT_PUBLISHED = 12
GPOOL_EVENT_OBJECT_DELETED = 13
GPOOL_EVENT_OBJECT_EVICTED = 14
GPOOL_EVENT_ROLE_GRANTED = 15
GPOOL_EVENT_ROLE_FREED = 16
GPOOL_EVENT_TAKEOVER = 17
GPOOL_EVENT_RETIRED = 18
GPOOL_EVENT_SPILL_ERROR = 20
GPOOL_EVENT_MOVER = 21
GPOOL_EVENT_DRAIN = 22
GPOOL_DEVICE_HOST_POINTER = 1


class gpool_block(c.Structure):
    generation: int
    tag: int
    page: int
    page_count: int

    _fields_ = [
        ("generation", c.c_uint64),
        ("tag", c.c_uint64),
        ("page", c.c_uint32),
        ("page_count", c.c_uint32),
    ]


class gpool_fence(c.Structure):
    value: int

    _fields_ = [
        ("value", c.c_uint64),
    ]


class gpool_options(c.Structure):
    size: int
    flags: int
    directory: Optional[Text]
    pool: Optional[Text]
    name: Optional[Text]
    tenant: Optional[Text]
    timeout_ms: int
    magazine: int
    quota_bytes: int
    log: Any
    log_context: Optional[int]

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("directory", c.c_char_p),
        ("pool", c.c_char_p),
        ("name", c.c_char_p),
        ("tenant", c.c_char_p),
        ("timeout_ms", c.c_int32),
        ("magazine", c.c_uint32),
        ("quota_bytes", c.c_uint64),
        ("log", c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)),
        ("log_context", c.c_void_p),
    ]


class gpool_alloc_options(c.Structure):
    size: int
    flags: int
    content: int
    priority: int
    owner_id: int
    timeout_ms: int
    stream: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("content", c.c_uint32),
        ("priority", c.c_uint32),
        ("owner_id", c.c_uint64),
        ("timeout_ms", c.c_int32),
        ("stream", c.c_uint32),
    ]


class gpool_holder(c.Structure):
    session: int
    content: int
    needed_pages: int
    offered_pages: int
    idle_pages: int
    name: Text

    _fields_ = [
        ("session", c.c_uint32),
        ("content", c.c_uint32),
        ("needed_pages", c.c_uint32),
        ("offered_pages", c.c_uint32),
        ("idle_pages", c.c_uint32),
        ("name", c.c_char * 64),
    ]


class gpool_shortage(c.Structure):
    size: int
    needed: int
    free: int
    pinned: int
    holder: int
    holder_pages: int
    holder_name: Text
    holder_count: int
    holders: c.Array[gpool_holder]

    _fields_ = [
        ("size", c.c_uint32),
        ("needed", c.c_uint32),
        ("free", c.c_uint32),
        ("pinned", c.c_uint32),
        ("holder", c.c_uint32),
        ("holder_pages", c.c_uint32),
        ("holder_name", c.c_char * 64),
        ("holder_count", c.c_uint32),
        ("holders", gpool_holder * 4),
    ]


class gpool_shortage_object(c.Structure):
    size: int
    pages: int
    session: int
    pins: int
    name: Text
    session_name: Text

    _fields_ = [
        ("size", c.c_uint32),
        ("pages", c.c_uint32),
        ("session", c.c_uint32),
        ("pins", c.c_uint32),
        ("name", c.c_char * 128),
        ("session_name", c.c_char * 64),
    ]


class gpool_span(c.Structure):
    block: gpool_block
    address: int
    offset: int
    bytes: int

    _fields_ = [
        ("block", gpool_block),
        ("address", c.c_uint64),
        ("offset", c.c_uint32),
        ("bytes", c.c_uint32),
    ]


class gpool_fence_handle(c.Structure):
    way: int
    bytes: c.Array[c.c_uint8]

    _fields_ = [
        ("way", c.c_uint32),
        ("bytes", c.c_uint8 * 124),
    ]


class gpool_scope(c.Structure):
    pool: Optional[int]
    blocks: Any
    count: int
    capacity: int
    content: int
    flags: int

    _fields_ = [
        ("pool", c.c_void_p),
        ("blocks", c.POINTER(gpool_block)),
        ("count", c.c_uint32),
        ("capacity", c.c_uint32),
        ("content", c.c_uint32),
        ("flags", c.c_uint32),
    ]


class gpool_object_options(c.Structure):
    size: int
    flags: int
    memory_class: int
    cost_us: int
    role: Optional[Text]
    role_token: int
    expect_version: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("memory_class", c.c_uint32),
        ("cost_us", c.c_uint32),
        ("role", c.c_char_p),
        ("role_token", c.c_uint64),
        ("expect_version", c.c_uint64),
    ]


class gpool_object_open_options(c.Structure):
    size: int
    flags: int
    version: int
    layout_hash: int
    role: Optional[Text]
    role_token: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("version", c.c_uint64),
        ("layout_hash", c.c_uint64),
        ("role", c.c_char_p),
        ("role_token", c.c_uint64),
    ]


class gpool_object_info(c.Structure):
    size: int
    number: int
    state: int
    memory_class: int
    pages: int
    allocations: int
    readers: int
    writer: int
    version: int
    layout_hash: int
    metadata_bytes: int
    published_ms: int
    uid: int
    pid: int
    name: Text
    tenant: Text
    role: Text

    _fields_ = [
        ("size", c.c_uint32),
        ("number", c.c_uint32),
        ("state", c.c_uint32),
        ("memory_class", c.c_uint32),
        ("pages", c.c_uint32),
        ("allocations", c.c_uint32),
        ("readers", c.c_uint32),
        ("writer", c.c_uint32),
        ("version", c.c_uint64),
        ("layout_hash", c.c_uint64),
        ("metadata_bytes", c.c_uint64),
        ("published_ms", c.c_uint64),
        ("uid", c.c_uint32),
        ("pid", c.c_uint32),
        ("name", c.c_char * 128),
        ("tenant", c.c_char * 64),
        ("role", c.c_char * 64),
    ]


class gpool_loan(c.Structure):
    pool: Optional[int]
    object: Optional[int]
    block: gpool_block
    stream: int
    ended: int

    _fields_ = [
        ("pool", c.c_void_p),
        ("object", c.c_void_p),
        ("block", gpool_block),
        ("stream", c.c_uint32),
        ("ended", c.c_uint32),
    ]


class gpool_range_options(c.Structure):
    size: int
    flags: int
    memory_class: int
    content: int
    name: Optional[Text]
    owner_id: int
    timeout_ms: int
    reserved: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("memory_class", c.c_uint32),
        ("content", c.c_uint32),
        ("name", c.c_char_p),
        ("owner_id", c.c_uint64),
        ("timeout_ms", c.c_int32),
        ("reserved", c.c_uint32),
    ]


class gpool_range_info(c.Structure):
    size: int
    state: int
    memory_class: int
    page_count: int
    address: int
    bytes: int
    version: int
    layout_hash: int
    name: Text
    backed_pages: int
    parked_pages: int
    captured_pages: int
    handle_pages: int
    offered_pages: int
    reserved: int

    _fields_ = [
        ("size", c.c_uint32),
        ("state", c.c_uint32),
        ("memory_class", c.c_uint32),
        ("page_count", c.c_uint32),
        ("address", c.c_uint64),
        ("bytes", c.c_uint64),
        ("version", c.c_uint64),
        ("layout_hash", c.c_uint64),
        ("name", c.c_char * 128),
        ("backed_pages", c.c_uint32),
        ("parked_pages", c.c_uint32),
        ("captured_pages", c.c_uint32),
        ("handle_pages", c.c_uint32),
        ("offered_pages", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


class gpool_range_page(c.Structure):
    size: int
    state: int
    page: int
    flags: int
    generation: int
    address: int

    _fields_ = [
        ("size", c.c_uint32),
        ("state", c.c_uint32),
        ("page", c.c_uint32),
        ("flags", c.c_uint32),
        ("generation", c.c_uint64),
        ("address", c.c_uint64),
    ]


class gpool_tensor_options(c.Structure):
    size: int
    flags: int
    memory_class: int
    content: int
    owner_id: int
    read_ahead: int
    reserved: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("memory_class", c.c_uint32),
        ("content", c.c_uint32),
        ("owner_id", c.c_uint64),
        ("read_ahead", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


class gpool_tensor_info(c.Structure):
    size: int
    slices: int
    blocks: int
    block_pages: int
    backed: int
    ready: int
    address: int
    slice_bytes: int
    block_bytes: int

    _fields_ = [
        ("size", c.c_uint32),
        ("slices", c.c_uint32),
        ("blocks", c.c_uint32),
        ("block_pages", c.c_uint32),
        ("backed", c.c_uint32),
        ("ready", c.c_uint32),
        ("address", c.c_uint64),
        ("slice_bytes", c.c_uint64),
        ("block_bytes", c.c_uint64),
    ]


class gpool_vm_options(c.Structure):
    size: int
    flags: int
    page_bytes: int
    initial_bytes: int
    address_bytes: int
    small: int
    content: int
    timeout_ms: int
    trace: int
    record_path: Optional[Text]
    idle_ms: int
    reserved: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("page_bytes", c.c_uint64),
        ("initial_bytes", c.c_uint64),
        ("address_bytes", c.c_uint64),
        ("small", c.c_uint32),
        ("content", c.c_uint32),
        ("timeout_ms", c.c_int32),
        ("trace", c.c_uint32),
        ("record_path", c.c_char_p),
        ("idle_ms", c.c_int32),
        ("reserved", c.c_uint32),
    ]


class gpool_vm_totals(c.Structure):
    size: int
    reserved: int
    page_bytes: int
    reserved_bytes: int
    mapped_bytes: int
    live_bytes: int
    reusable_bytes: int
    hole_bytes: int
    zombie_bytes: int
    parked_bytes: int
    small_bytes: int
    live_regions: int
    reusable_regions: int
    hole_regions: int
    zombie_regions: int
    allocations: int
    frees: int
    remaps: int
    remapped_bytes: int
    taken_bytes: int
    waits: int
    records_lost: int

    _fields_ = [
        ("size", c.c_uint32),
        ("reserved", c.c_uint32),
        ("page_bytes", c.c_uint64),
        ("reserved_bytes", c.c_uint64),
        ("mapped_bytes", c.c_uint64),
        ("live_bytes", c.c_uint64),
        ("reusable_bytes", c.c_uint64),
        ("hole_bytes", c.c_uint64),
        ("zombie_bytes", c.c_uint64),
        ("parked_bytes", c.c_uint64),
        ("small_bytes", c.c_uint64),
        ("live_regions", c.c_uint64),
        ("reusable_regions", c.c_uint64),
        ("hole_regions", c.c_uint64),
        ("zombie_regions", c.c_uint64),
        ("allocations", c.c_uint64),
        ("frees", c.c_uint64),
        ("remaps", c.c_uint64),
        ("remapped_bytes", c.c_uint64),
        ("taken_bytes", c.c_uint64),
        ("waits", c.c_uint64),
        ("records_lost", c.c_uint64),
    ]


class gpool_kv_shape(c.Structure):
    layers: int
    kv_heads: int
    head_size: int
    dtype_bytes: int
    block_tokens: int

    _fields_ = [
        ("layers", c.c_uint32),
        ("kv_heads", c.c_uint32),
        ("head_size", c.c_uint32),
        ("dtype_bytes", c.c_uint32),
        ("block_tokens", c.c_uint32),
    ]


class gpool_kv_options(c.Structure):
    size: int
    flags: int
    shape: gpool_kv_shape
    stream: int
    max_blocks: int
    max_sequences: int
    max_sequence_tokens: int
    watermark_blocks: int
    owner_id: int
    model: c.Array[c.c_uint8]
    cached_blocks: int
    pool_blocks: int
    pack_bytes_per_s: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("shape", gpool_kv_shape),
        ("stream", c.c_uint32),
        ("max_blocks", c.c_uint32),
        ("max_sequences", c.c_uint32),
        ("max_sequence_tokens", c.c_uint32),
        ("watermark_blocks", c.c_uint32),
        ("owner_id", c.c_uint64),
        ("model", c.c_uint8 * 32),
        ("cached_blocks", c.c_uint32),
        ("pool_blocks", c.c_uint32),
        ("pack_bytes_per_s", c.c_uint64),
    ]


class gpool_kv_layout(c.Structure):
    size: int
    block_tokens: int
    block_bytes: int
    chunk_bytes: int
    chunk_blocks: int
    max_blocks: int
    address: int
    table_address: int
    table_columns: int
    max_sequences: int
    pool_blocks: int
    reserved: int

    _fields_ = [
        ("size", c.c_uint32),
        ("block_tokens", c.c_uint32),
        ("block_bytes", c.c_uint64),
        ("chunk_bytes", c.c_uint64),
        ("chunk_blocks", c.c_uint32),
        ("max_blocks", c.c_uint32),
        ("address", c.c_uint64),
        ("table_address", c.c_uint64),
        ("table_columns", c.c_uint32),
        ("max_sequences", c.c_uint32),
        ("pool_blocks", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


class gpool_kv_need(c.Structure):
    size: int
    needed_blocks: int
    available_blocks: int
    free_blocks: int
    watermark_blocks: int
    reserved: int

    _fields_ = [
        ("size", c.c_uint32),
        ("needed_blocks", c.c_uint32),
        ("available_blocks", c.c_uint32),
        ("free_blocks", c.c_uint32),
        ("watermark_blocks", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


class gpool_kv_batch(c.Structure):
    size: int
    max_sequences: int
    max_tokens: int

    _fields_ = [
        ("size", c.c_uint32),
        ("max_sequences", c.c_uint32),
        ("max_tokens", c.c_uint64),
    ]


class gpool_kv_request(c.Structure):
    size: int
    flags: int
    tokens: int
    estimated_tokens: int
    priority: int
    reserved: int
    owner_id: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("tokens", c.c_uint32),
        ("estimated_tokens", c.c_uint32),
        ("priority", c.c_uint32),
        ("reserved", c.c_uint32),
        ("owner_id", c.c_uint64),
    ]


class gpool_kv_loss(c.Structure):
    size: int
    reserved: int
    max_error: float
    relative_error: float

    _fields_ = [
        ("size", c.c_uint32),
        ("reserved", c.c_uint32),
        ("max_error", c.c_double),
        ("relative_error", c.c_double),
    ]


class gpool_kv_offloaded(c.Structure):
    size: int
    host_blocks: int
    host_free_blocks: int
    sequences: int
    host_bytes: int
    content_bytes: int
    pool_pages: int
    saves: int
    loads: int

    _fields_ = [
        ("size", c.c_uint32),
        ("host_blocks", c.c_uint32),
        ("host_free_blocks", c.c_uint32),
        ("sequences", c.c_uint32),
        ("host_bytes", c.c_uint64),
        ("content_bytes", c.c_uint64),
        ("pool_pages", c.c_uint64),
        ("saves", c.c_uint64),
        ("loads", c.c_uint64),
    ]


class gpool_kv_pair(c.Structure):
    from_: int
    to: int

    _fields_ = [
        ("from_", c.c_int32),
        ("to", c.c_int32),
    ]


class gpool_kv_prefix(c.Structure):
    size: int
    flags: int
    ids: Any
    count: int
    reserved: int
    adapter_id: int
    salt: c.Array[c.c_uint64]

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("ids", c.POINTER(c.c_uint32)),
        ("count", c.c_uint32),
        ("reserved", c.c_uint32),
        ("adapter_id", c.c_uint64),
        ("salt", c.c_uint64 * 2),
    ]


class gpool_kv_prefix_found(c.Structure):
    size: int
    blocks: int
    tokens: int
    cached_blocks: int

    _fields_ = [
        ("size", c.c_uint32),
        ("blocks", c.c_uint32),
        ("tokens", c.c_uint32),
        ("cached_blocks", c.c_uint32),
    ]


class gpool_kv_sequence(c.Structure):
    size: int
    state: int
    tokens: int
    blocks: int
    shared_blocks: int
    room: int
    row: int
    priority: int
    arrival: int
    owner_id: int

    _fields_ = [
        ("size", c.c_uint32),
        ("state", c.c_uint32),
        ("tokens", c.c_uint32),
        ("blocks", c.c_uint32),
        ("shared_blocks", c.c_uint32),
        ("room", c.c_uint32),
        ("row", c.c_uint32),
        ("priority", c.c_uint32),
        ("arrival", c.c_uint64),
        ("owner_id", c.c_uint64),
    ]


class gpool_kv_statistics(c.Structure):
    size: int
    used_blocks: int
    free_blocks: int
    available_blocks: int
    watermark_blocks: int
    reclaimable_blocks: int
    step_blocks: int
    shared_blocks: int
    running: int
    preempted: int
    backed_chunks: int
    cached_blocks: int
    backed_bytes: int
    allocations: int
    forks: int
    frees: int
    preemptions: int
    resumes: int
    refusals: int
    block_copies: int
    table_bytes: int
    prefix_hits: int
    prefix_misses: int
    prefix_published: int
    prefix_switched: int
    prefix_evicted: int
    pool_shared: int
    pool_found: int
    pool_blocks: int
    offered_chunks: int
    prefix_lost: int

    _fields_ = [
        ("size", c.c_uint32),
        ("used_blocks", c.c_uint32),
        ("free_blocks", c.c_uint32),
        ("available_blocks", c.c_uint32),
        ("watermark_blocks", c.c_uint32),
        ("reclaimable_blocks", c.c_uint32),
        ("step_blocks", c.c_uint32),
        ("shared_blocks", c.c_uint32),
        ("running", c.c_uint32),
        ("preempted", c.c_uint32),
        ("backed_chunks", c.c_uint32),
        ("cached_blocks", c.c_uint32),
        ("backed_bytes", c.c_uint64),
        ("allocations", c.c_uint64),
        ("forks", c.c_uint64),
        ("frees", c.c_uint64),
        ("preemptions", c.c_uint64),
        ("resumes", c.c_uint64),
        ("refusals", c.c_uint64),
        ("block_copies", c.c_uint64),
        ("table_bytes", c.c_uint64),
        ("prefix_hits", c.c_uint64),
        ("prefix_misses", c.c_uint64),
        ("prefix_published", c.c_uint64),
        ("prefix_switched", c.c_uint64),
        ("prefix_evicted", c.c_uint64),
        ("pool_shared", c.c_uint64),
        ("pool_found", c.c_uint64),
        ("pool_blocks", c.c_uint32),
        ("offered_chunks", c.c_uint32),
        ("prefix_lost", c.c_uint64),
    ]


class gpool_kv_span(c.Structure):
    size: int
    first_token: int
    tokens: int
    blocks: int
    sequence: int

    _fields_ = [
        ("size", c.c_uint32),
        ("first_token", c.c_uint32),
        ("tokens", c.c_uint32),
        ("blocks", c.c_uint32),
        ("sequence", c.c_uint64),
    ]


class gpool_lora_options(c.Structure):
    size: int
    flags: int
    element: int
    load_threads: int
    cold_folder: Optional[Text]
    salt: c.Array[c.c_uint64]
    warm: Optional[int]
    rebalance_ms: int
    reserved: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("element", c.c_uint32),
        ("load_threads", c.c_uint32),
        ("cold_folder", c.c_char_p),
        ("salt", c.c_uint64 * 2),
        ("warm", c.c_void_p),
        ("rebalance_ms", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


class gpool_lora_matrix(c.Structure):
    first: int
    more: int
    head_tiles: int
    run_tiles: int

    _fields_ = [
        ("first", c.c_uint64),
        ("more", c.c_uint64),
        ("head_tiles", c.c_uint32),
        ("run_tiles", c.c_uint32),
    ]


class gpool_lora_part(c.Structure):
    a: gpool_lora_matrix
    b: gpool_lora_matrix
    rank: int
    scale: float
    reserved: int

    _fields_ = [
        ("a", gpool_lora_matrix),
        ("b", gpool_lora_matrix),
        ("rank", c.c_uint32),
        ("scale", c.c_float),
        ("reserved", c.c_uint64),
    ]


class gpool_lora_info(c.Structure):
    size: int
    state: int
    acquired: int
    rank_max: int
    modules: int
    layers: int
    pages: int
    element: int
    hits: int
    loads: int
    shared: int
    lost: int
    name: Text
    from_warm: int
    from_cold: int
    rebalanced: int

    _fields_ = [
        ("size", c.c_uint32),
        ("state", c.c_uint32),
        ("acquired", c.c_uint32),
        ("rank_max", c.c_uint32),
        ("modules", c.c_uint32),
        ("layers", c.c_uint32),
        ("pages", c.c_uint32),
        ("element", c.c_uint32),
        ("hits", c.c_uint64),
        ("loads", c.c_uint64),
        ("shared", c.c_uint64),
        ("lost", c.c_uint64),
        ("name", c.c_char * 128),
        ("from_warm", c.c_uint64),
        ("from_cold", c.c_uint64),
        ("rebalanced", c.c_uint64),
    ]


class gpool_lora_stats(c.Structure):
    size: int
    registered: int
    resident: int
    active: int
    hits: int
    loads: int
    shared: int
    lost: int
    from_warm: int
    from_cold: int
    hot_bytes: int
    warm_bytes: int
    cold_bytes: int
    warm_made: int
    warm_full: int
    refused: int
    rebalanced: int

    _fields_ = [
        ("size", c.c_uint32),
        ("registered", c.c_uint32),
        ("resident", c.c_uint32),
        ("active", c.c_uint32),
        ("hits", c.c_uint64),
        ("loads", c.c_uint64),
        ("shared", c.c_uint64),
        ("lost", c.c_uint64),
        ("from_warm", c.c_uint64),
        ("from_cold", c.c_uint64),
        ("hot_bytes", c.c_uint64),
        ("warm_bytes", c.c_uint64),
        ("cold_bytes", c.c_uint64),
        ("warm_made", c.c_uint64),
        ("warm_full", c.c_uint64),
        ("refused", c.c_uint64),
        ("rebalanced", c.c_uint64),
    ]


class gpool_lora_target(c.Structure):
    name: Optional[Text]
    in_: int
    out: int

    _fields_ = [
        ("name", c.c_char_p),
        ("in_", c.c_uint32),
        ("out", c.c_uint32),
    ]


class gpool_lora_batch_options(c.Structure):
    size: int
    flags: int
    stream: int
    element: int
    tokens_max: int
    adapters_max: int
    rank_max: int
    layers: int
    targets: Any
    target_count: int
    reserved: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("stream", c.c_uint32),
        ("element", c.c_uint32),
        ("tokens_max", c.c_uint32),
        ("adapters_max", c.c_uint32),
        ("rank_max", c.c_uint32),
        ("layers", c.c_uint32),
        ("targets", c.POINTER(gpool_lora_target)),
        ("target_count", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


class gpool_lora_scheduler_options(c.Structure):
    size: int
    flags: int
    requests: int
    batch_requests: int
    batch_adapters: int
    batch_tokens: int
    look_ahead: int
    patience_ms: int

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("requests", c.c_uint32),
        ("batch_requests", c.c_uint32),
        ("batch_adapters", c.c_uint32),
        ("batch_tokens", c.c_uint32),
        ("look_ahead", c.c_uint32),
        ("patience_ms", c.c_uint32),
    ]


class gpool_lora_schedule(c.Structure):
    size: int
    start_count: int
    failed_count: int
    adapters: int
    awaited: int
    starts: c.Array[c.c_uint32]
    failed: c.Array[c.c_uint32]
    errors: c.Array[c.c_int32]

    _fields_ = [
        ("size", c.c_uint32),
        ("start_count", c.c_uint32),
        ("failed_count", c.c_uint32),
        ("adapters", c.c_uint32),
        ("awaited", c.c_uint32),
        ("starts", c.c_uint32 * 256),
        ("failed", c.c_uint32 * 256),
        ("errors", c.c_int32 * 256),
    ]


class gpool_lora_scheduler_statistics(c.Structure):
    size: int
    waiting: int
    running: int
    awaited: int
    batches: int
    added: int
    started: int
    finished: int
    removed: int
    failed: int
    cold_starts: int
    passed_over: int
    overdue: int
    longest_passed_us: int
    longest_wait_us: int

    _fields_ = [
        ("size", c.c_uint32),
        ("waiting", c.c_uint32),
        ("running", c.c_uint32),
        ("awaited", c.c_uint32),
        ("batches", c.c_uint64),
        ("added", c.c_uint64),
        ("started", c.c_uint64),
        ("finished", c.c_uint64),
        ("removed", c.c_uint64),
        ("failed", c.c_uint64),
        ("cold_starts", c.c_uint64),
        ("passed_over", c.c_uint64),
        ("overdue", c.c_uint64),
        ("longest_passed_us", c.c_uint64),
        ("longest_wait_us", c.c_uint64),
    ]


class gpool_role(c.Structure):
    token: int
    index: int
    session: int

    _fields_ = [
        ("token", c.c_uint64),
        ("index", c.c_uint32),
        ("session", c.c_uint32),
    ]


class gpool_event(c.Structure):
    kind: int
    session: int
    time_ms: int
    value: int
    pool: Text
    text: Text

    _fields_ = [
        ("kind", c.c_uint32),
        ("session", c.c_uint32),
        ("time_ms", c.c_uint64),
        ("value", c.c_uint64),
        ("pool", c.c_char * 64),
        ("text", c.c_char * 192),
    ]


class gpool_device(c.Structure):
    size: int
    flags: int
    ordinal: int
    reserved: int
    pool: Text
    backend: Text
    uuid: Text

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("ordinal", c.c_uint32),
        ("reserved", c.c_uint32),
        ("pool", c.c_char * 64),
        ("backend", c.c_char * 16),
        ("uuid", c.c_char * 48),
    ]


class gpool_statistics(c.Structure):
    size: int
    leased_pages: int
    idle_pages: int
    deferred_blocks: int
    allocations: int
    frees: int
    pins: int
    unpins: int
    stale_pins: int
    contended_pins: int
    magazine_hits: int
    stitched: int
    refills: int
    refusals: int
    driver_calls: int
    allocation_ns: c.Array[c.c_uint64]
    refill_ns: c.Array[c.c_uint64]

    _fields_ = [
        ("size", c.c_uint32),
        ("leased_pages", c.c_uint32),
        ("idle_pages", c.c_uint32),
        ("deferred_blocks", c.c_uint32),
        ("allocations", c.c_uint64),
        ("frees", c.c_uint64),
        ("pins", c.c_uint64),
        ("unpins", c.c_uint64),
        ("stale_pins", c.c_uint64),
        ("contended_pins", c.c_uint64),
        ("magazine_hits", c.c_uint64),
        ("stitched", c.c_uint64),
        ("refills", c.c_uint64),
        ("refusals", c.c_uint64),
        ("driver_calls", c.c_uint64),
        ("allocation_ns", c.c_uint64 * 32),
        ("refill_ns", c.c_uint64 * 32),
    ]


# What gpool.h itself says of sizes, in bytes.
SIZES: Dict[str, int] = {
    "gpool_block": 24,
    "gpool_options": 72,
    "gpool_alloc_options": 32,
    "gpool_holder": 84,
    "gpool_shortage": 428,
    "gpool_shortage_object": 208,
    "gpool_fence_handle": 128,
    "gpool_object_options": 40,
    "gpool_object_open_options": 40,
    "gpool_object_info": 328,
    "gpool_loan": 48,
    "gpool_range_options": 40,
    "gpool_range_info": 200,
    "gpool_range_page": 32,
    "gpool_tensor_options": 32,
    "gpool_tensor_info": 48,
    "gpool_vm_options": 64,
    "gpool_vm_totals": 168,
    "gpool_kv_shape": 20,
    "gpool_kv_options": 104,
    "gpool_kv_layout": 64,
    "gpool_kv_need": 24,
    "gpool_kv_batch": 16,
    "gpool_kv_request": 32,
    "gpool_kv_loss": 24,
    "gpool_kv_offloaded": 56,
    "gpool_kv_prefix": 48,
    "gpool_kv_prefix_found": 16,
    "gpool_kv_sequence": 48,
    "gpool_kv_statistics": 192,
    "gpool_kv_span": 24,
    "gpool_lora_options": 56,
    "gpool_lora_part": 64,
    "gpool_lora_info": 216,
    "gpool_lora_stats": 120,
    "gpool_lora_batch_options": 48,
    "gpool_lora_scheduler_options": 32,
    "gpool_lora_schedule": 3092,
    "gpool_lora_scheduler_statistics": 104,
    "gpool_role": 16,
    "gpool_device": 144,
}

# Result and arguments. Pointers to what only the library knows are c_void_p.
CALLS: Dict[str, Tuple[Any, List[Any]]] = {
    "gpool_version": (c.c_char_p, []),
    "gpool_strerror": (c.c_char_p, [c.c_int]),
    "gpool_last_error": (c.c_char_p, [c.c_int]),
    "gpool_wait_check": (None, [c.CFUNCTYPE(c.c_int, c.c_void_p), c.c_void_p]),
    "gpool_open": (c.c_int, [c.POINTER(gpool_options), c.POINTER(c.c_void_p)]),
    "gpool_close": (None, [c.c_void_p]),
    "gpool_alloc": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_alloc_options), c.POINTER(gpool_block)]),
    "gpool_free": (c.c_int, [c.c_void_p, c.POINTER(gpool_block)]),
    "gpool_drop": (c.c_int, [c.c_void_p, c.POINTER(gpool_block)]),
    "gpool_pin": (c.c_int, [c.c_void_p, c.POINTER(gpool_block)]),
    "gpool_unpin": (c.c_int, [c.c_void_p, c.POINTER(gpool_block)]),
    "gpool_relocate": (c.c_int, [c.c_void_p, c.POINTER(gpool_block)]),
    "gpool_touch": (c.c_int, [c.c_void_p, c.POINTER(gpool_block)]),
    "gpool_address": (c.c_int, [c.c_void_p, c.POINTER(gpool_block), c.POINTER(c.c_uint64)]),
    "gpool_shortage": (c.c_int, [c.c_void_p, c.POINTER(gpool_shortage)]),
    "gpool_shortage_object": (c.c_int, [c.c_void_p, c.POINTER(gpool_shortage_object)]),
    "gpool_let_go": (c.c_int, [c.c_void_p]),
    "gpool_span_alloc": (c.c_int, [c.c_void_p, c.c_uint64, c.c_uint32, c.POINTER(gpool_span)]),
    "gpool_span_free": (c.c_int, [c.c_void_p, c.POINTER(gpool_span)]),
    "gpool_stream_open": (c.c_int, [c.c_void_p, c.c_void_p, c.c_uint32, c.POINTER(c.c_uint32)]),
    "gpool_stream_native": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(c.c_void_p)]),
    "gpool_stream_close": (None, [c.c_void_p, c.c_uint32]),
    "gpool_copy": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint64, c.c_uint64, c.c_uint64]),
    "gpool_fill": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint64, c.c_uint32, c.c_uint64]),
    "gpool_fence_record": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_fence)]),
    "gpool_fence_done": (c.c_int, [c.c_void_p, gpool_fence]),
    "gpool_fence_wait": (c.c_int, [c.c_void_p, gpool_fence, c.c_int]),
    "gpool_stream_wait": (c.c_int, [c.c_void_p, c.c_uint32, gpool_fence]),
    "gpool_fence_signal": (c.c_int, [c.c_void_p, gpool_fence]),
    "gpool_free_after": (c.c_int, [c.c_void_p, c.POINTER(gpool_block), gpool_fence]),
    "gpool_unpin_after": (c.c_int, [c.c_void_p, c.POINTER(gpool_block), gpool_fence]),
    "gpool_fence_export": (c.c_int, [c.c_void_p, gpool_fence, c.c_uint32, c.POINTER(gpool_fence_handle)]),
    "gpool_fence_import": (c.c_int, [c.c_void_p, c.POINTER(gpool_fence_handle), c.POINTER(gpool_fence)]),
    "gpool_fence_close": (c.c_int, [c.c_void_p, gpool_fence]),
    "gpool_scope_begin": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint32, c.POINTER(gpool_scope)]),
    "gpool_scope_alloc": (c.c_int, [c.POINTER(gpool_scope), c.c_uint32, c.POINTER(gpool_alloc_options), c.POINTER(gpool_block)]),
    "gpool_scope_end": (c.c_int, [c.POINTER(gpool_scope), c.POINTER(gpool_fence)]),
    "gpool_scope_cleanup": (None, [c.POINTER(gpool_scope)]),
    "gpool_prepare": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_alloc_options), c.POINTER(gpool_block)]),
    "gpool_commit": (c.c_int, [c.c_void_p, c.POINTER(gpool_block), c.POINTER(c.c_uint64)]),
    "gpool_rollback": (c.c_int, [c.c_void_p, c.POINTER(gpool_block)]),
    "gpool_object_create": (c.c_int, [c.c_void_p, c.c_char_p, c.POINTER(gpool_object_options), c.POINTER(c.c_void_p)]),
    "gpool_object_alloc": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_alloc_options), c.POINTER(c.c_uint32)]),
    "gpool_object_set": (c.c_int, [c.c_void_p, c.c_char_p, c.c_void_p, c.c_size_t]),
    "gpool_object_publish": (c.c_int, [c.c_void_p, c.POINTER(c.c_uint64)]),
    "gpool_object_abort": (None, [c.c_void_p]),
    "gpool_object_open": (c.c_int, [c.c_void_p, c.c_char_p, c.POINTER(gpool_object_open_options), c.POINTER(c.c_void_p)]),
    "gpool_object_close": (c.c_int, [c.c_void_p]),
    "gpool_object_pin": (c.c_int, [c.c_void_p]),
    "gpool_object_unpin": (c.c_int, [c.c_void_p]),
    "gpool_object_unpin_after": (c.c_int, [c.c_void_p, gpool_fence]),
    "gpool_object_address": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(c.c_uint64), c.POINTER(c.c_uint64)]),
    "gpool_object_get": (c.c_int, [c.c_void_p, c.c_char_p, c.POINTER(c.c_void_p), c.POINTER(c.c_size_t)]),
    "gpool_object_entry": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(c.c_char_p), c.POINTER(c.c_void_p), c.POINTER(c.c_size_t)]),
    "gpool_object_delete": (c.c_int, [c.c_void_p, c.c_char_p, c.c_uint64]),
    "gpool_object_info": (c.c_int, [c.c_void_p, c.POINTER(gpool_object_info)]),
    "gpool_object_next": (c.c_int, [c.c_void_p, c.POINTER(c.c_uint32), c.POINTER(gpool_object_info)]),
    "gpool_loan_end": (None, [c.c_void_p]),
    "gpool_range_create": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_range_options), c.POINTER(c.c_void_p)]),
    "gpool_range_open": (c.c_int, [c.c_void_p, c.c_char_p, c.POINTER(gpool_object_open_options), c.POINTER(c.c_void_p)]),
    "gpool_range_destroy": (c.c_int, [c.c_void_p]),
    "gpool_range_address": (c.c_int, [c.c_void_p, c.POINTER(c.c_uint64)]),
    "gpool_range_get": (c.c_int, [c.c_void_p, c.POINTER(gpool_range_info)]),
    "gpool_range_reserve": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_range_options), c.POINTER(c.c_void_p)]),
    "gpool_range_back": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint32, c.c_int]),
    "gpool_range_unback": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint32, gpool_fence]),
    "gpool_range_capture": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint32, c.c_int]),
    "gpool_range_offer": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint32, gpool_fence]),
    "gpool_range_reclaim": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint32, c.POINTER(c.c_uint8)]),
    "gpool_range_resolve": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_range_page)]),
    "gpool_tensor_create": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint32, c.c_uint32, c.POINTER(gpool_tensor_options), c.POINTER(c.c_void_p)]),
    "gpool_tensor_destroy": (c.c_int, [c.c_void_p]),
    "gpool_tensor_grow": (c.c_int, [c.c_void_p, c.c_uint32, c.c_int]),
    "gpool_tensor_shrink": (c.c_int, [c.c_void_p, c.c_uint32, gpool_fence]),
    "gpool_tensor_get": (c.c_int, [c.c_void_p, c.POINTER(gpool_tensor_info)]),
    "gpool_sleep": (c.c_int, [c.c_void_p, c.c_uint32]),
    "gpool_wake": (c.c_int, [c.c_void_p, c.c_int]),
    "gpool_asleep": (c.c_int, [c.c_void_p]),
    "gpool_vm_configure": (c.c_int, [c.c_void_p, c.POINTER(gpool_vm_options)]),
    "gpool_malloc": (c.c_int, [c.c_void_p, c.c_uint64, c.c_uint32, c.POINTER(c.c_uint64)]),
    "gpool_mfree": (c.c_int, [c.c_void_p, c.c_uint64, c.c_uint32]),
    "gpool_vm_trim": (c.c_int64, [c.c_void_p, c.c_uint64]),
    "gpool_vm_capture": (c.c_int, [c.c_void_p, c.c_uint64, c.c_int]),
    "gpool_vm_totals": (c.c_int, [c.c_void_p, c.POINTER(gpool_vm_totals)]),
    "gpool_vm_dump": (c.c_int, [c.c_void_p, c.CFUNCTYPE(None, c.c_void_p, c.c_char_p), c.c_void_p]),
    "gpool_kv_create": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_options), c.POINTER(c.c_void_p)]),
    "gpool_kv_destroy": (c.c_int, [c.c_void_p]),
    "gpool_kv_layout": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_layout)]),
    "gpool_kv_address": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(c.c_uint64)]),
    "gpool_kv_can_allocate": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_kv_need)]),
    "gpool_kv_can_batch": (c.c_int, [c.c_void_p, c.POINTER(c.c_uint32), c.c_uint32, c.POINTER(gpool_kv_batch), c.POINTER(gpool_kv_need)]),
    "gpool_kv_shortage": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_need)]),
    "gpool_kv_allocate": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_request), c.POINTER(c.c_uint64)]),
    "gpool_kv_append": (c.c_int, [c.c_void_p, c.c_uint64, c.c_uint32, c.POINTER(c.c_uint64)]),
    "gpool_kv_fork": (c.c_int, [c.c_void_p, c.c_uint64, c.POINTER(c.c_uint64)]),
    "gpool_kv_free": (c.c_int, [c.c_void_p, c.c_uint64]),
    "gpool_kv_preempt": (c.c_int, [c.c_void_p, c.c_uint64, c.POINTER(c.c_uint64)]),
    "gpool_kv_waiting": (c.c_int, [c.c_void_p, c.POINTER(c.c_uint64)]),
    "gpool_kv_resume": (c.c_int, [c.c_void_p, c.c_uint64]),
    "gpool_kv_host_open": (c.c_int, [c.c_void_p, c.c_uint64]),
    "gpool_kv_offload": (c.c_int, [c.c_void_p, c.c_uint64, c.c_uint32, c.POINTER(c.c_uint64)]),
    "gpool_kv_prefetch": (c.c_int, [c.c_void_p, c.c_uint64]),
    "gpool_kv_loss": (c.c_int, [c.c_void_p, c.c_uint64, c.POINTER(gpool_kv_loss)]),
    "gpool_kv_offloaded": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_offloaded)]),
    "gpool_kv_table": (c.c_int, [c.c_void_p, c.c_uint64, c.POINTER(c.POINTER(c.c_int32)), c.POINTER(c.c_uint32)]),
    "gpool_kv_sync": (c.c_int, [c.c_void_p]),
    "gpool_kv_copy_blocks": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_pair), c.c_size_t]),
    "gpool_kv_pack": (c.c_int, [c.c_void_p, c.c_uint32]),
    "gpool_kv_validate": (c.c_int, [c.c_void_p, c.c_uint64, c.c_int32, c.POINTER(gpool_kv_shape)]),
    "gpool_kv_prefix_find": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_prefix), c.POINTER(gpool_kv_prefix_found)]),
    "gpool_kv_prefix_allocate": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_request), c.POINTER(gpool_kv_prefix), c.POINTER(c.c_uint64), c.POINTER(c.c_uint32)]),
    "gpool_kv_prefix_publish": (c.c_int, [c.c_void_p, c.c_uint64, c.POINTER(gpool_kv_prefix)]),
    "gpool_kv_prefix_share": (c.c_int, [c.c_void_p, c.c_uint64, c.c_int]),
    "gpool_kv_prefix_evict": (c.c_int, [c.c_void_p, c.c_uint32]),
    "gpool_kv_sequence": (c.c_int, [c.c_void_p, c.c_uint64, c.POINTER(gpool_kv_sequence)]),
    "gpool_kv_statistics": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_statistics)]),
    "gpool_kv_group_create": (c.c_int, [c.POINTER(c.c_void_p), c.c_uint32, c.c_uint32, c.POINTER(c.c_void_p)]),
    "gpool_kv_group_destroy": (None, [c.c_void_p]),
    "gpool_kv_group_can_allocate": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(c.c_uint32), c.POINTER(gpool_kv_need)]),
    "gpool_kv_group_shortage": (c.c_int, [c.c_void_p, c.POINTER(c.c_uint32), c.POINTER(gpool_kv_need)]),
    "gpool_kv_group_allocate": (c.c_int, [c.c_void_p, c.POINTER(gpool_kv_request), c.POINTER(c.c_uint64)]),
    "gpool_kv_group_append": (c.c_int, [c.c_void_p, c.c_uint64, c.c_uint32, c.POINTER(c.c_uint32), c.POINTER(c.c_uint64)]),
    "gpool_kv_group_fork": (c.c_int, [c.c_void_p, c.c_uint64, c.POINTER(c.c_uint64)]),
    "gpool_kv_group_free": (c.c_int, [c.c_void_p, c.c_uint64]),
    "gpool_kv_group_preempt": (c.c_int, [c.c_void_p, c.c_uint64, c.POINTER(c.c_uint64)]),
    "gpool_kv_group_resume": (c.c_int, [c.c_void_p, c.c_uint64]),
    "gpool_kv_group_span": (c.c_int, [c.c_void_p, c.c_uint64, c.c_uint32, c.POINTER(gpool_kv_span)]),
    "gpool_lora_open": (c.c_int, [c.c_void_p, c.POINTER(gpool_lora_options), c.POINTER(c.c_void_p)]),
    "gpool_lora_close": (c.c_int, [c.c_void_p]),
    "gpool_lora_register": (c.c_int, [c.c_void_p, c.c_char_p, c.c_char_p, c.POINTER(c.c_uint32), c.c_char_p]),
    "gpool_lora_find": (c.c_int, [c.c_void_p, c.c_char_p, c.POINTER(c.c_uint32)]),
    "gpool_lora_unregister": (c.c_int, [c.c_void_p, c.c_uint32]),
    "gpool_lora_acquire": (c.c_int, [c.c_void_p, c.c_uint32, c.c_int]),
    "gpool_lora_begin": (c.c_int, [c.c_void_p, c.c_uint32, c.c_int]),
    "gpool_lora_wait": (c.c_int, [c.c_void_p, c.c_uint32, c.c_int32, c.c_int]),
    "gpool_lora_prefetch": (c.c_int, [c.c_void_p, c.c_uint32]),
    "gpool_lora_release": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_fence)]),
    "gpool_lora_unload": (c.c_int, [c.c_void_p, c.c_uint32]),
    "gpool_lora_why": (c.c_int, [c.c_void_p, c.c_uint32, c.c_char_p]),
    "gpool_lora_part": (c.c_int, [c.c_void_p, c.c_uint32, c.c_int32, c.c_char_p, c.POINTER(gpool_lora_part)]),
    "gpool_lora_info": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_lora_info)]),
    "gpool_lora_stats": (c.c_int, [c.c_void_p, c.POINTER(gpool_lora_stats)]),
    "gpool_lora_batch_open": (c.c_int, [c.c_void_p, c.POINTER(gpool_lora_batch_options), c.POINTER(c.c_void_p)]),
    "gpool_lora_batch_close": (c.c_int, [c.c_void_p]),
    "gpool_lora_batch_set": (c.c_int, [c.c_void_p, c.POINTER(c.c_uint32), c.c_uint32, c.c_char_p]),
    "gpool_lora_batch_apply": (c.c_int, [c.c_void_p, c.c_int32, c.c_uint32, c.c_uint64, c.c_uint32, c.c_uint64, c.c_uint32, c.c_uint32]),
    "gpool_lora_scheduler_open": (c.c_int, [c.c_void_p, c.POINTER(gpool_lora_scheduler_options), c.POINTER(c.c_void_p)]),
    "gpool_lora_scheduler_close": (c.c_int, [c.c_void_p]),
    "gpool_lora_scheduler_add": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint32, c.POINTER(c.c_uint32)]),
    "gpool_lora_scheduler_remove": (c.c_int, [c.c_void_p, c.c_uint32]),
    "gpool_lora_scheduler_finish": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(gpool_fence)]),
    "gpool_lora_scheduler_form": (c.c_int, [c.c_void_p, c.c_int, c.POINTER(gpool_lora_schedule)]),
    "gpool_lora_scheduler_queue": (c.c_int, [c.c_void_p, c.POINTER(c.c_uint32), c.c_uint32]),
    "gpool_lora_scheduler_statistics": (c.c_int, [c.c_void_p, c.POINTER(gpool_lora_scheduler_statistics)]),
    "gpool_role_acquire": (c.c_int, [c.c_void_p, c.c_char_p, c.c_int, c.POINTER(gpool_role)]),
    "gpool_role_check": (c.c_int, [c.c_void_p, c.POINTER(gpool_role)]),
    "gpool_role_release": (c.c_int, [c.c_void_p, c.POINTER(gpool_role)]),
    "gpool_role_get": (c.c_int, [c.c_void_p, c.c_char_p, c.POINTER(c.c_uint32), c.POINTER(c.c_uint64)]),
    "gpool_event_next": (c.c_int, [c.c_void_p, c.c_int, c.POINTER(gpool_event)]),
    "gpool_page_bytes": (c.c_uint64, [c.c_void_p]),
    "gpool_page_count": (c.c_uint32, [c.c_void_p]),
    "gpool_session": (c.c_uint32, [c.c_void_p]),
    "gpool_pressure": (c.c_int, [c.c_void_p]),
    "gpool_device": (c.c_int, [c.c_void_p, c.POINTER(gpool_device)]),
    "gpool_statistics": (c.c_int, [c.c_void_p, c.POINTER(gpool_statistics)]),
}
