#!/usr/bin/env python3
"""Write the Grafana dashboard for gpool-exporter's metrics to standard output.

In a query, METRIC[] is the metric of the selected machines and pools, and METRIC{} that of the selected machines;
rate() and increase() use the interval of the graph.
"""

import json
import re

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MACHINE = 'instance=~"$instance"'
POOL = MACHINE + ',pool=~"$pool"'


def expand(query: str) -> str:
    query = re.sub(r"\b(rate|increase)\((\w+)(\[\]|\{\})\)", r"\1(\2\3[$__rate_interval])", query)
    return query.replace("[]", "{" + POOL + "}").replace("{}", "{" + MACHINE + "}")


def quantile(name: str, share: str) -> str:
    return f"histogram_quantile({share}, sum by (pool, le) (rate({name}_duration_seconds_bucket[])))"


def hits(name: str) -> str:
    return f"rate(gpool_{name}_hits_total[]) / (rate(gpool_{name}_hits_total[]) + rate(gpool_{name}_misses_total[]))"


def pages(name: str) -> str:
    return f"rate(gpool_{name}_pages_total[]) * on (instance, pool) gpool_page_size_bytes[]"


# fmt: off
# title, unit, query, legend, description, {value: text} or None, [(color, from)]
STATS = [
    ("Agent", "none", "min(gpool_up{})", "", "Whether the agent answers.", {0: "down", 1: "up"}, [("red", None),
     ("green", 1)]),
    ("Utilization", "percentunit", "gpool_pool_utilization_ratio[]", "{{pool}}",
     "Share of the pages that are in blocks.", None, []),
    ("Pressure", "none", "gpool_pool_pressure[]", "{{pool}}", "", {0: "low", 1: "medium", 2: "high", 3: "critical"},
     [("green", None), ("yellow", 2), ("red", 3)]),
    ("Refusals", "reqps", "rate(gpool_refusals_total[])", "{{pool}}",
     "Requests refused because too little memory was available, or a limit or quota was reached.", None,
     [("green", None), ("red", 0.001)]),
    ("Sessions", "none", "gpool_pool_sessions[]", "{{pool}}", "Attached processes, including the exporter.", None, []),
    ("Retired", "bytes", "gpool_pool_retired_bytes[]", "{{pool}}",
     "Retired pages: a process of another trust domain may still have them mapped.", None, [("green", None),
     ("yellow", 1)]),
]

# For each row of graphs, its height; for each graph, its title, unit, description and {legend: query}.
ROWS = [
    (9, [
        ("Memory", "bytes", "Pages by state.", {
            name: f"gpool_pool_{'shared' if name == 'objects' else name}_bytes[]"
            for name in ("needed", "offered", "idle", "objects", "quarantined", "retired", "reserved", "free")
        }),
        ("Content", "bytes", "Pages in blocks, by content.",
         {"{{usage}}": "sum by (usage) (gpool_tenant_usage_bytes[])"}),
    ]),
    (9, [
        ("Tenants", "bytes", "Leased pages, guaranteed minimum and limit of each tenant.", {
            "{{tenant}}": "gpool_tenant_leased_bytes[]",
            "{{tenant}} guaranteed": "gpool_tenant_minimum_bytes[]",
            "{{tenant}} limit": "gpool_tenant_limit_bytes[]",
        }),
        ("Pressure and waiting requests", "none", "", {
            "pressure, 0 to 3": "gpool_pool_pressure[]",
            "requests waiting": "gpool_pool_waiters[]",
            "queued mover jobs": "gpool_mover_queued_jobs[]",
        }),
    ]),
    (8, [
        ("Pages leased, reclaimed and evicted", "short", "Pages per second.", {
            "leased": "rate(gpool_granted_pages_total[])",
            "reclaimed": "rate(gpool_reclaimed_pages_total[])",
            "evicted": "rate(gpool_evicted_pages_total[])",
            "evicted from {{tenant}}": "rate(gpool_tenant_evicted_pages_total[])",
        }),
        ("Evicted and refused, by content", "short", "Pages and requests per second, by tenant and usage.", {
            "{{tenant}} {{usage}} evicted": "rate(gpool_tenant_usage_evicted_pages_total[])",
            "{{tenant}} {{usage}} refused": "rate(gpool_tenant_usage_refusals_total[])",
        }),
        ("Fragmentation", "percentunit",
         "Longest run of free pages, divided by all free pages; 1: all free pages are contiguous.",
         {"": "gpool_fragmentation_ratio[]"}),
        ("Allocations and pins", "ops", "", {name: f"rate(gpool_{name}_total[])" for name in ("allocations", "pins",
         "refills")}),
    ]),
    (8, [
        ("Allocation latency", "s",
         "Measured in the worker for one in 256 allocations; each bucket is twice as wide as the previous one.", {
            "median": quantile("gpool_allocation", "0.5"),
            "99 %": quantile("gpool_allocation", "0.99"),
            "99.9 %": quantile("gpool_allocation", "0.999"),
        }),
        ("Allocation latency by tenant", "s", "99th percentile by tenant and usage.", {
            "{{tenant}} {{usage}}": "histogram_quantile(0.99, sum by (tenant, usage, le) "
            "(rate(gpool_tenant_usage_allocation_duration_seconds_bucket[])))",
        }),
        ("Refill latency", "s", "A worker's request for pages, measured in the worker.", {
            "median": quantile("gpool_refill", "0.5"),
            "99 %": quantile("gpool_refill", "0.99"),
        }),
        ("Contended pins", "percentunit", "The target is below 0.1 %.",
         {"": "rate(gpool_contended_pins_total[]) / rate(gpool_pins_total[])"}),
    ]),
    (8, [
        ("Hit rates", "percentunit", "The target for adapters is above 90 %.", {
            "adapters": hits("adapter"),
            "prompt blocks": hits("prefix"),
            "magazines": "rate(gpool_magazine_hits_total[]) / rate(gpool_allocations_total[])",
        }),
        ("Hit rates of tenants", "percentunit", "Prompt blocks (KV_CACHE) and adapters (LORA_WEIGHT).",
         {"{{tenant}} {{usage}}": "rate(gpool_tenant_usage_hits_total[]) / (rate(gpool_tenant_usage_hits_total[]) + "
          "rate(gpool_tenant_usage_misses_total[]))"}),
        ("Adapters and objects", "bytes", "", {"adapters": "gpool_adapter_bytes[]",
         "{{class}} objects": "gpool_object_bytes[]"}),
        ("Number of adapters and objects", "none", "", {
            "adapters": "gpool_adapters[]",
            "{{class}} objects": "gpool_objects[]",
            "publications per second": "rate(gpool_publications_total[])",
        }),
    ]),
    (8, [
        ("Spilled content", "bytes", "", {"{{tier}}": "gpool_spill_used_bytes[]",
         "{{tier}} limit": "gpool_spill_limit_bytes[]"}),
        ("Spilled and restored", "Bps", "", {
            "spilled": pages("spilled"),
            "restored": pages("restored"),
            "all jobs of the mover": "rate(gpool_mover_moved_bytes_total[])",
        }),
        ("Errors", "none", "", {
            "leaked pins": "increase(gpool_leaked_pins_total[])",
            "deaths of workers": "increase(gpool_session_deaths_total[])",
            "damaged fields": "increase(gpool_damaged_fields_total[])",
            "spill errors": "increase(gpool_spill_errors_total[])",
            "lost blocks": "increase(gpool_spill_lost_blocks_total[])",
            "pages retired": "increase(gpool_retired_pages_total[])",
        }),
    ]),
    (8, [
        ("Restarts", "none", "", {
            "agent": "increase(gpool_agent_starts_total[])",
            "mover": "increase(gpool_mover_starts_total[])",
            "front": "increase(gpool_front_restarts_total{})",
            "seconds without a mover": "gpool_mover_gone_seconds[]",
        }),
        ("Uptime of the agent", "s", "", {"": "gpool_agent_uptime_seconds{}"}),
        ("Exporter", "none", "", {
            "CPU use, in cores": "rate(process_cpu_seconds_total{}) and on (instance) gpool_up",
            "seconds per sample": "gpool_exporter_sample_duration_seconds{}",
        }),
    ]),
]
# fmt: on


def panel(number: int, kind: str, title: str, unit: str, description: str, place: tuple, targets: list) -> dict:
    defaults = {
        "unit": unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}]},
    }
    if unit == "percentunit" and "Contended" not in title:
        defaults["max"] = 1
    made = {"id": number, "title": title, "type": kind, "datasource": SOURCE, "gridPos": dict(zip("xywh", place))}
    made |= {"fieldConfig": {"defaults": defaults, "overrides": []}}
    made["targets"] = [
        {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expand(query), "legendFormat": legend}
        for i, (legend, query) in enumerate(targets)
    ]
    return made | ({"description": description} if description else {})


def stat(
    number: int, title: str, unit: str, query: str, legend: str, description: str, words: dict, colors: list
) -> dict:
    made = panel(number, "stat", title, unit, description, ((number - 1) * 4, 0, 4, 4), [(legend, query)])
    defaults = made["fieldConfig"]["defaults"]
    if words:
        options = {
            str(value): {"text": text} | ({"color": colors[value][0]} if title == "Agent" else {})
            for value, text in words.items()
        }
        defaults["mappings"] = [{"type": "value", "options": options}]
    if colors:
        defaults["thresholds"]["steps"] = [{"color": color, "value": value} for color, value in colors]
    made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "graphMode": "area"}
    return made


def graph(number: int, title: str, unit: str, description: str, place: tuple, queries: dict) -> dict:
    pool = {True: "{{pool}} ", False: "{{instance}} "}
    targets = []
    for legend, query in queries.items():
        plain = legend in ("front", "{{usage}}")
        targets.append((legend if plain else (pool["[]" in query] + legend).rstrip(), query))
    made = panel(number, "timeseries", title, unit, description, place, targets)
    stacked = title in ("Memory", "Content")
    made["fieldConfig"]["defaults"]["custom"] = {
        "fillOpacity": 60 if stacked else 10,
        "lineWidth": 1,
        "showPoints": "never",
        "stacking": {"mode": "normal" if stacked else "none"},
    }
    made["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return made


def variable(name: str, label: str, query: str) -> dict:
    made = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "v"},
    }
    return made | {
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict:
    panels = [stat(i + 1, *row) for i, row in enumerate(STATS)]
    top = 9
    for height, graphs in ROWS:
        width = 24 // len(graphs)
        for i, (title, unit, description, queries) in enumerate(graphs):
            panels.append(graph(len(panels) + 1, title, unit, description, (i * width, top, width, height), queries))
        top += height
    variables = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        variable("instance", "Machine", "label_values(gpool_up, instance)"),
        variable("pool", "Pool", 'label_values(gpool_pool_info{instance=~"$instance"}, pool)'),
    ]
    made = {
        "title": "gpool",
        "uid": "gpool",
        "tags": ["gpu", "memory"],
        "description": "Pools of GPU memory, from gpool-exporter.",
        "schemaVersion": 38,
    }
    made |= {
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
    }
    return made | {"templating": {"list": variables}, "panels": panels}


print(json.dumps(dashboard(), indent=1))
