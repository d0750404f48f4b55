"""Prometheus metrics. Names are vLLM's where they mean the same, with ``exactspec:`` in front instead of ``vllm:``.

Each server has a registry of its own. Gauges and the scheduler's counters are read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exactspec.results import Completion
from exactspec.scheduling import SchedulerStats

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
MAX_POSITION = 32
"""Tokens of a step that are counted by their place; later ones count with the last."""


class ServerMetrics:
    """All that the server counts. `registry`: its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"exactspec:{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"exactspec:{name}", text, buckets=buckets, registry=registry)

        self._prompt = counter("prompt_tokens", "Tokens of prompts, cached ones included.")
        self._generated = counter("generation_tokens", "Tokens of answers.")
        self._cached = counter("prompt_tokens_cached", "Tokens of prompts whose keys and values were reused.")
        self._ended = counter("request_success", "Answers, by why they ended.", ["finished_reason"])
        self._steps = counter("num_steps", "Verify steps of answers, plain ones included.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Drafted tokens verified.", ["source"])
        self._accepted = counter("spec_decode_num_accepted_tokens", "Drafted tokens accepted.", ["source"])
        self._drafted_at = counter("spec_decode_num_draft_tokens_per_pos", "The same by place.", ["position"])
        self._accepted_at = counter("spec_decode_num_accepted_tokens_per_pos", "The same by place.", ["position"])
        self._first = histogram("time_to_first_token_seconds", "From the request to its first token.", _SECONDS)
        self._between = histogram("inter_token_latency_seconds", "Time of a chunk by the tokens in it.", _SHORT)
        self._whole = histogram("e2e_request_latency_seconds", "From the request to its end.", _SECONDS)
        self._http = counter("http_requests", "HTTP requests, by path and status.", ["path", "status"])

    def watch(self, stats: Callable[[], SchedulerStats]) -> None:
        """Show the scheduler's state as well."""
        self.registry.register(_State(stats))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)

    def http(self, path: str, status: int) -> None:
        self._http.labels(path, str(status)).inc()

    def clock(self, answers: int, start: float) -> Clock:
        return Clock(self._first, self._between, answers, start)

    def ended(self, done: Sequence[Completion], start: float, *, lost: Mapping[str, int]) -> None:
        """A request that the scheduler took is over. `done`: its answers that ended; `lost`: how many did not, by why;
        `start`: `perf_counter` at its beginning."""
        self._whole.observe(perf_counter() - start)
        for reason, answers in lost.items():
            if answers:
                self._ended.labels(reason).inc(answers)
        for completion in done:
            m = completion.metrics
            self._ended.labels(completion.finish_reason).inc()
            self._prompt.inc(m.prompt_tokens)
            self._cached.inc(m.cached_tokens)
            self._generated.inc(m.completion_tokens)
            self._steps.inc(m.num_steps)
            for counter, by_source in ((self._drafted, m.drafted_by_source), (self._accepted, m.accepted_by_source)):
                for source, n in by_source.items():
                    counter.labels(source).inc(n)
            for counter, by_depth in ((self._drafted_at, m.drafted_by_depth), (self._accepted_at, m.accepted_by_depth)):
                for at, n in enumerate(by_depth):
                    counter.labels(str(min(at, MAX_POSITION - 1))).inc(n)


class Clock:
    """Times of one request's tokens, as they reach the event loop."""

    def __init__(self, first: Histogram, between: Histogram, answers: int, start: float) -> None:
        self._first, self._between, self._start = first, between, start
        self._last: list[float | None] = [None] * answers

    def chunk(self, index: int, tokens: int) -> None:
        if not tokens:
            return
        now = perf_counter()
        last = self._last[index]
        if last is None:
            self._first.observe(now - self._start)
        else:
            for _ in range(tokens):
                self._between.observe((now - last) / tokens)
        self._last[index] = now


class _State(Collector):
    """The scheduler's own figures, asked for at each scrape."""

    def __init__(self, stats: Callable[[], SchedulerStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        s = self._stats()
        for name, text, value in (
            ("num_requests_running", "Answers that are being made.", s.running),
            ("num_requests_waiting", "Answers that wait for a place.", s.waiting),
            ("cache_bytes", "Keys and values, of running requests and kept prefixes.", s.cache_bytes),
            ("cache_bytes_limit", "The most they may take.", s.cache_limit),
            ("prefix_cache_bytes", "Of kept prefixes alone.", s.prefix_bytes),
            ("prefix_cache_entries", "Kept prefixes.", s.prefix_entries),
        ):
            yield GaugeMetricFamily(f"exactspec:{name}", text, value)
        for name, text, value in (
            ("forwards", "Forwards, each for all running requests.", s.steps),
            ("rows", "Rows of all forwards.", s.rows),
            ("prefill_rows", "Those of prompts.", s.prefill_rows),
            ("prefix_cache_queries", "Requests that looked for a kept prefix.", s.prefix_queries),
            ("prefix_cache_hits", "Those that found one.", s.prefix_hits),
            ("num_preemptions", "Times that a running request gave its memory up.", s.preempted),
            ("requests_refused", "Requests that found the queue full.", s.refused),
            ("requests_cancelled", "Requests that ended by cancellation.", s.cancelled),
            ("requests_failed", "Requests that ended by an error.", s.failed),
        ):
            yield CounterMetricFamily(f"exactspec:{name}", text, value)
