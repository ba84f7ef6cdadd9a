"""What one sees of a producer: a bar while it is at work, and a summary, or one JSON document."""

import threading
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from scheduler.cli.show import emit, emit_json, screen, visible
from scheduler.dialects.client import Client
from scheduler.dialects.reliable.keys import Keys
from scheduler.model.files import ProducerRule, Summary
from scheduler.queueing.producer import FILE_QUEUE, Producer


def produce(
    client: Client,
    rule: ProducerRule,
    keys: Keys,
    stop: threading.Event,
    *,
    queue: str = FILE_QUEUE,
    watch: Callable[[Producer], object] = lambda _: None,
    as_json: bool = False,
) -> Summary:
    """Queue the files of a folder, with a bar where a person looks at stderr, and print what came
    of it.
    """
    place = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=place,
        transient=True,
        disable=not place.is_terminal,
    )
    with bar:
        task = bar.add_task(
            "looking for files", total=None
        )  # how many there are is known at the end
        producer = Producer(
            client,
            rule,
            keys,
            queue=queue,
            progress=lambda so_far: bar.update(task, description=_figures(so_far)),
        )
        watch(producer)
        told = producer.run(stop)
    if as_json:
        emit_json(_document(told))
    else:
        emit(_page(told), screen())
    return told


def _figures(summary: Summary) -> str:
    queued = f"queued {summary.queued.total():,}"
    if summary.queued:
        queued += (
            f" ({', '.join(f'{word} {count:,}' for word, count in sorted(summary.queued.items()))})"
        )
    skipped = summary.skipped.total()
    return (
        f"{queued}, unchanged {summary.unchanged:,}, excluded {summary.excluded:,}, skipped "
        f"{skipped:,}"
    )


def _page(summary: Summary) -> Text:
    lines = [_figures(summary) + ("" if summary.finished else "; stopped before the end")]
    lines += [f"  skipped {visible(path)}: {reason}" for path, reason in summary.named]
    if (more := summary.skipped.total() - len(summary.named)) > 0:
        lines.append(
            f"  and {more:,} more: "
            f"{', '.join(f'{why} {n:,}' for why, n in summary.skipped.most_common())}"
        )
    return Text("\n".join(lines))


def _document(summary: Summary) -> dict[str, object]:
    return {
        "queued": dict(summary.queued),
        "unchanged": summary.unchanged,
        "excluded": summary.excluded,
        "skipped": dict(summary.skipped),
        "named": [{"path": path, "reason": reason} for path, reason in summary.named],
        "finished": summary.finished,
    }
