// Implements Trace: writes the span logs of all ranks to one file.
#include "fsdp/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine_parts.h"
#include "engine/trace_file.h"
#include "fsdp/error.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// Returns microseconds with three decimals. It formats integers, because the 53-bit mantissa of a
// double cannot represent the nanoseconds of a machine that has been up for months.
std::string microseconds(int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

// [Note: rows of a trace]
// Viewers draw the spans of a thread as a stack. They drop or misplace a span that partly overlaps
// another span. So each lane of the log (SpanLane) is drawn with as many threads as are needed to
// nest its spans: one, or two if the spans of units in backward overlap.
class Rows {
 public:
  // Returns the row of a span.
  // Requires: spans are passed sorted by lane, then by begin. Spans that are equal in both are
  //   passed in descending order of length.
  size_t place(const Span& span) {
    if (rows_.empty() || span.lane != lane_) {
      lane_ = span.lane;
      first_of_lane_ = rows_.size();
    }
    for (size_t row = first_of_lane_; row < rows_.size(); ++row) {
      std::vector<int64_t>& open_until = rows_[row];
      while (!open_until.empty() && open_until.back() <= span.begin_ns) open_until.pop_back();
      if (!open_until.empty() && open_until.back() < span.end_ns) continue;
      open_until.push_back(span.end_ns);
      return row;
    }
    rows_.push_back({span.end_ns});
    return rows_.size() - 1;
  }
  size_t count() const { return rows_.size(); }

 private:
  std::vector<std::vector<int64_t>> rows_;  // ends of open spans, the innermost last
  SpanLane lane_ = {};
  size_t first_of_lane_ = 0;
};

// Returns a thread number that differs from all process numbers. Perfetto interprets 0 as no
// thread, and a process's own number as its main thread.
int64_t thread_of(int rank, size_t row) {
  return (rank + 1) * int64_t{1000} + static_cast<int64_t>(row);
}

// Appends the name of a process or thread and its position in the viewer.
void append_label(std::string& events, std::string_view what, int rank, int64_t thread,
                  std::string_view name, size_t place) {
  const std::string whose = fmt::format("\"pid\":{},\"tid\":{}", rank, thread);
  fmt::format_to(
      std::back_inserter(events),
      "{{\"ph\":\"M\",\"name\":\"{0}_name\",{1},\"args\":{{\"name\":{2}}}}},\n"
      "{{\"ph\":\"M\",\"name\":\"{0}_sort_index\",{1},\"args\":{{\"sort_index\":{3}}}}},\n",
      what, whose, json_text(name), place);
}

void append_spans(std::string& events, int rank, std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tuple(a.lane, a.begin_ns, b.end_ns) < std::tuple(b.lane, b.begin_ns, a.end_ns);
  });
  Rows rows;
  for (const Span& span : spans) {
    const size_t known = rows.count();
    const size_t row = rows.place(span);
    const int64_t thread = thread_of(rank, row);
    if (row == known) append_label(events, "thread", rank, thread, name_of(span.lane), row);
    std::string name(span.what);
    if (!span.subject.empty()) name += fmt::format(" {}", span.subject);
    if (span.number > 0) name += fmt::format(" {}", span.number);
    fmt::format_to(std::back_inserter(events),
                   "{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":{},\"tid\":{},\"ts\":{},"
                   "\"dur\":{}}},\n",
                   json_text(name), json_text(span.what), rank, thread, microseconds(span.begin_ns),
                   microseconds(span.end_ns - span.begin_ns));
  }
}

void append_bytes(std::string& events, int rank, const BytesAt& at) {
  fmt::format_to(std::back_inserter(events),
                 "{{\"ph\":\"C\",\"name\":\"engine bytes\",\"pid\":{},\"ts\":{},\"args\":{{", rank,
                 microseconds(at.at_ns));
  for (size_t i = 0; i < at.bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(events), "{}{}:{}", i == 0 ? "" : ",",
                   json_text(name_of(static_cast<MemoryCategory>(i))), at.bytes[i]);
  }
  events += "}},\n";
}

// Blocks until the spans of all issued work are in the log.
void settle(ShardContext& context) {
  with_place([] { return "trace"; },
             [&] {
               context.streams.gather->synchronize();
               context.streams.reduce->synchronize();
               context.main->settle();
               context.streams.compute->synchronize();
             });
}

std::ofstream create(const std::filesystem::path& file, std::ios::openmode mode) {
  std::ofstream out(file, mode);
  if (out) return out;
  throw IoError(ExitCode::kCannotCreate, {.what = "the trace file cannot be created",
                                          .where = file.string(),
                                          .cause = std::strerror(errno),
                                          .hint = "choose a file in a folder that exists"});
}

std::string events_of(const SpanLog& log, const Mesh& mesh) {
  const int rank = mesh.rank();
  const std::string name = fmt::format("rank {}/{}", rank, mesh.world_size());
  std::string events;
  append_label(events, "process", rank, thread_of(rank, 0), name, rank);
  append_spans(events, rank, log.spans());
  for (const BytesAt& at : log.bytes()) append_bytes(events, rank, at);
  return events;
}

void write_trace(std::span<const std::string> events, const std::filesystem::path& file) {
  std::ofstream out = create(file, std::ios::binary);
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  std::string all;
  for (const std::string& text : events) all += text;
  all.resize(all.size() - 2);  // JSON allows no comma after the last event
  out << all << "\n]}\n";
  out.close();
  if (!out) {
    throw IoError(ExitCode::kIoError, {.what = "the trace file cannot be written",
                                       .where = file.string(),
                                       .cause = std::strerror(errno),
                                       .hint = "check whether the disk is full"});
  }
}

}  // namespace

Trace::Trace(Engine& engine) : state_(state_of(engine)) {
  settle(*state_.context);  // so that the trace has no spans of earlier work
  state_.context->spans.start();
  with_place([] { return "trace"; }, [&] { state_.steps.begin(*state_.context->streams.compute); });
  // Writes the first point of the memory curves. Without it, a curve would begin at its next
  // change.
  state_.context->memory.ledger.note();
}
Trace::~Trace() {
  SpanLog& spans = state_.context->spans;
  spans.stop();
  // Traces may be nested. When the outermost trace ends, the span of the current step is dropped,
  // because the step has not ended.
  if (!spans.is_on()) state_.steps.forget();
}

void write_trace_of_rank(EngineParts& engine, const std::filesystem::path& file) {
  settle(*engine.context);
  const std::string events = events_of(engine.context->spans, engine.context->mesh);
  write_trace({&events, 1}, file);
}

void Trace::check_file(const std::filesystem::path& file) { create(file, std::ios::app); }

void Trace::write(const std::filesystem::path& file) const {
  const Mesh& mesh = state_.context->mesh;
  settle(*state_.context);
  // Each rank sends its events as text, and only rank 0 writes the file.
  const auto texts = mesh.exchange("trace", events_of(state_.context->spans, mesh));
  if (mesh.rank() == 0) write_trace(texts, file);
}

InputSpan::InputSpan(const Engine& engine) : state_(*engine.state_) {
  const SpanLog& spans = state_.context->spans;
  if (spans.is_on() && !spans.follows_stream()) begin_ns_ = span_clock_ns();
}

InputSpan::~InputSpan() {
  SpanLog& spans = state_.context->spans;
  if (begin_ns_ == 0 || !spans.is_on()) return;
  spans.add({SpanLane::kInput, "input", {}, begin_ns_, span_clock_ns()});
}

}  // namespace fsdp
