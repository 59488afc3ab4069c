// From a rank's SpanLog to one file of all ranks.
#include "fsdp/trace.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "engine/engine_state.h"
#include "fsdp/error.h"

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

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

// A lane whose spans nest is a thread; one whose spans overlap is a track of begins and ends.
void append_span(std::string& events, int rank, size_t id, const Span& span) {
  const std::string name =
      json_text(span.subject.empty() ? span.what : fmt::format("{} {}", span.what, span.subject));
  const auto lane = static_cast<int>(span.lane);
  if (span.lane != SpanLane::kBackward) {
    fmt::format_to(std::back_inserter(events),
                   "{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},"
                   "\"dur\":{:.3f}}},\n",
                   name, json_text(span.what), rank, lane, microseconds(span.begin_ns),
                   microseconds(span.end_ns - span.begin_ns));
    return;
  }
  for (const auto& [phase, at] : {std::pair{'b', span.begin_ns}, std::pair{'e', span.end_ns}}) {
    fmt::format_to(std::back_inserter(events),
                   "{{\"ph\":\"{}\",\"name\":{},\"cat\":{},\"id\":\"{}.{}\",\"pid\":{},\"tid\":{},"
                   "\"ts\":{:.3f}}},\n",
                   phase, name, json_text(span.what), rank, id, rank, lane, microseconds(at));
  }
}

void append_bytes(std::string& events, int rank, const BytesAt& at) {
  fmt::format_to(std::back_inserter(events),
                 "{{\"ph\":\"C\",\"name\":\"engine bytes\",\"pid\":{},\"ts\":{:.3f},\"args\":{{",
                 rank, microseconds(at.at_ns));
  for (size_t i = 0; i < at.bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(events), "{}{}:{}", i == 0 ? "" : ",",
                   json_text(name_of(static_cast<MemoryCategory>(i))), at.bytes[i]);
  }
  events += "}},\n";
}

// Every span of what has been issued is in the log afterwards.
void settle(Lanes& lanes) {
  lanes.gather_stream->synchronize();
  lanes.reduce_stream->synchronize();
}

std::ofstream create(const std::filesystem::path& file, std::ios::openmode mode) {
  std::ofstream out(file, mode);
  if (out) return out;
  throw IoError(ExitCode::kCannotCreate, {.what = "the trace cannot be created",
                                          .where = file.string(),
                                          .cause = std::strerror(errno),
                                          .hint = "choose a file in a folder that exists"});
}

std::string events_of(const SpanLog& log, const Mesh& mesh) {
  const int rank = mesh.rank();
  std::string events = fmt::format(
      "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{0},\"args\":{{\"name\":\"rank {0}/{1}\"}}"
      "}},\n",
      rank, mesh.world_size());
  for (int lane = 0; lane < kSpanLanes; ++lane) {
    fmt::format_to(std::back_inserter(events),
                   "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{"
                   "\"name\":{}}}}},\n",
                   rank, lane, json_text(name_of(static_cast<SpanLane>(lane))));
  }
  size_t id = 0;
  for (const Span& span : log.spans()) append_span(events, rank, id++, span);
  for (const BytesAt& at : log.bytes()) append_bytes(events, rank, at);
  return events;
}

}  // namespace

Trace::Trace(Engine& engine) : state_(engine.state()) {
  settle(*state_.lanes);  // else a span of earlier work could end in this trace
  state_.lanes->spans.start();
  state_.lanes->ledger.note();
}
Trace::~Trace() { state_.lanes->spans.stop(); }

void Trace::check_file(const std::filesystem::path& file) { create(file, std::ios::app); }

void Trace::write(const std::filesystem::path& file) const {
  const Mesh& mesh = state_.lanes->mesh;
  settle(*state_.lanes);
  const auto texts = mesh.exchange("trace", events_of(state_.lanes->spans, mesh));
  if (mesh.rank() != 0) return;
  std::ofstream out = create(file, std::ios::binary);
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  std::string all;
  for (const std::string& text : texts) all += text;
  all.resize(all.size() - 2);  // JSON allows no comma behind the last event
  out << all << "\n]}\n";
  out.close();
  if (!out) {
    throw IoError(ExitCode::kIoError, {.what = "the trace cannot be written",
                                       .where = file.string(),
                                       .cause = std::strerror(errno),
                                       .hint = "is the disk full?"});
  }
}

}  // namespace fsdp
