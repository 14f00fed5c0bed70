"""Describe dashboards in plain values, and write them as Grafana's JSON.

Queries for one moment use `$__range`, the time shown. Queries over time use `$__rate_interval`,
the shortest time that contains a few scrapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardSpecialValueMapOptions,
    DataSourceRef,
    DynamicConfigValue,
    SpecialValueMap,
    SpecialValueMatch,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")

Kind = Literal["number", "lines", "stack", "table", "heatmap", "timeline"]
WIDTH = 24


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and the name of each of its series."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A page that shows more; `url` may hold Grafana's variables."""

    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a dashboard.

    description: How to read the panel.
    unit: Grafana's name of a unit.
    thresholds: Limits that all series share, drawn as lines. A limit that differs by series is a
        query whose legend ends with "objective" or "limit".
    least: A number below it is red.
    link: The target of a click on a series.

    A timeline shows when each series was 1, and when 0.
    """

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Kind = "lines"
    width: int = 12
    decimals: int | None = None
    thresholds: Sequence[float] = ()
    least: float | None = None
    link: Link | None = None

    @property
    def height(self) -> int:
        return 4 if self.kind == "number" else 8

    @property
    def instant(self) -> bool:
        """True if the query is for one moment, not over time."""
        return self.kind in {"number", "table"}


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice among the values of a label of `metric`; `many`: several at once."""

    name: str
    title: str
    metric: str
    label: str
    many: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice among `values` by their names; `chosen` is the default."""

    name: str
    title: str
    values: Mapping[str, str]
    chosen: str


@dataclass(frozen=True, slots=True)
class Event:
    """A moment when `expression` has a value, marked on every panel over time.

    at: The value itself is the moment, in milliseconds since 1970.
    """

    name: str
    expression: str
    text: str
    color: str
    at: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    description: str
    variables: Sequence[Variable | Choice]
    panels: Sequence[Panel]
    events: Sequence[Event] = ()

    def json(self) -> str:
        """Return the JSON that Grafana reads."""
        builder = (
            dashboard.Dashboard(self.title)
            .uid(self.uid)
            .description(self.description)
            .tags(["cohort"])
            .time("now-1h", "now")
            .refresh("30s")
            .timezone("browser")
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .readonly()
            .link(
                dashboard.DashboardLink("Cohort")
                .tags(["cohort"])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
            )
        )
        for variable in self.variables:
            if isinstance(variable, Choice):
                builder.with_variable(_choice(variable))
            else:
                builder.with_variable(_variable(variable))
        for number, panel in enumerate(self.panels, 1):
            builder.with_panel(_panel(panel, number))
        plain = json.loads(json.dumps(builder.build(), cls=JSONEncoder), object_hook=_without_none)
        plain["annotations"] = {"list": [_annotation(event) for event in self.events]}
        return json.dumps(plain, indent=1, sort_keys=True) + "\n"


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    """Remove unset values, so that Grafana uses its defaults."""
    return {name: value for name, value in values.items() if value is not None}


def _variable(variable: Variable) -> dashboard.QueryVariable:
    builder = (
        dashboard.QueryVariable(variable.name)
        .label(variable.title)
        .datasource(SOURCE)
        .query(f"label_values({variable.metric}, {variable.label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if variable.many:
        builder.multi(True).include_all(True).all_value(".*")
    return builder


def _choice(choice: Choice) -> dashboard.CustomVariable:
    written = ", ".join(f"{name} : {value}" for name, value in choice.values.items())
    chosen = VariableOption(selected=True, text=choice.chosen, value=choice.values[choice.chosen])
    return dashboard.CustomVariable(choice.name).label(choice.title).values(written).current(chosen)


def _annotation(event: Event) -> dict[str, Any]:
    """Return an event as Grafana's Prometheus source has it; the SDK lacks its text."""
    return {
        "datasource": {"type": SOURCE.type_val, "uid": SOURCE.uid},
        "enable": True,
        "expr": event.expression,
        "iconColor": event.color,
        "name": event.name,
        "textFormat": event.text,
        "titleFormat": event.name,
        "useValueForTime": "on" if event.at else False,
    }


_Builder = stat.Panel | table.Panel | timeseries.Panel | heatmap.Panel | statetimeline.Panel


def _panel(panel: Panel, number: int) -> _Builder:
    builder: _Builder
    if panel.kind == "number":
        builder = (
            stat.Panel()
            .color_mode(options.BigValueColorMode.VALUE)
            .graph_mode(options.BigValueGraphMode.NONE)
            .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            .thresholds(_at_least(panel.least))
            .mappings([_NO_REQUESTS])
        )
    elif panel.kind == "table":
        builder = table.Panel().override_by_name("Time", [_HIDDEN])
    elif panel.kind == "heatmap":
        builder = heatmap.Panel()
    elif panel.kind == "timeline":
        builder = statetimeline.Panel().mappings([_WELL])
    else:
        builder = timeseries.Panel().fill_opacity(5).legend(_legend()).tooltip(_tooltip())
        builder.override_by_regexp("/(objective|limit)$/", _LIMIT)
        if panel.thresholds:
            builder.thresholds(_thresholds(panel)).thresholds_style(
                common.GraphThresholdsStyleConfig().mode(options.GraphTresholdsStyleMode.DASHED)
            )
        if panel.kind == "stack":
            builder.fill_opacity(40).stacking(
                common.StackingConfig().mode(options.StackingMode.NORMAL)
            )
    builder = (
        builder.id(number)
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(panel.height)
    )
    if panel.link is not None:
        builder.data_links([dashboard.DashboardLink(panel.link.title).url(panel.link.url)])
    if panel.decimals is not None:
        builder.decimals(panel.decimals)
    for letter, query in zip("ABCDEF", panel.queries, strict=False):
        builder.with_target(_target(panel, query, letter))
    return builder


_LIMIT = [
    DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": "red"}),
    DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [10, 10]}),
    DynamicConfigValue(id_val="custom.fillOpacity", value=0),
]
"""The style of a line that is a limit for the others."""


_NO_REQUESTS = SpecialValueMap(
    DashboardSpecialValueMapOptions(
        SpecialValueMatch.NA_N, ValueMappingResult("no requests", "text")
    )
)
"""The text for a share of no requests."""

_WELL = ValueMap(
    {
        "0": ValueMappingResult("no", "red", index=0),
        "1": ValueMappingResult("yes", "green", index=1),
    }
)


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    colors = ["orange", "red"] if len(panel.thresholds) > 1 else ["red"]
    above = [Threshold(at, color) for at, color in zip(panel.thresholds, colors, strict=True)]
    return _steps(Threshold(None, "green"), *above)


def _at_least(least: float | None) -> dashboard.ThresholdsConfig:
    if least is None:
        return _steps(Threshold(None, "text"))
    return _steps(Threshold(None, "red"), Threshold(least, "green"))


def _steps(*steps: Threshold) -> dashboard.ThresholdsConfig:
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(list(steps))


_HIDDEN = DynamicConfigValue(id_val="custom.hidden", value=True)


def _target(panel: Panel, query: Query, letter: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expression).ref_id(letter).datasource(SOURCE)
    if query.legend:
        target.legend_format(query.legend)
    if panel.kind == "heatmap":
        target.format(PromQueryFormat.HEATMAP)
    if panel.kind == "table":
        target.format(PromQueryFormat.TABLE)
    return target.instant() if panel.instant else target.range()


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(options.LegendDisplayMode.LIST)
        .placement(options.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI)
