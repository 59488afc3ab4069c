// A log of one rank's work over time, for the traces that users read. It holds spans (grouped in
// lanes) and the bytes in use. The log is off, and costs almost nothing, until a trace starts it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "runtime/stream.h"

namespace fsdp {

// A row of the trace. Spans in kBackward may overlap, because the span of a unit ends after the
// next unit's span has begun.
enum class SpanLane : uint8_t {
  kStep,
  kInput,
  kCompute,
  kGather,
  kReduce,
  kUpload,
  kDownload,
  kBackward
};
std::string_view name_of(SpanLane lane);

// Returns nanoseconds of the monotonic clock, which the processes of a host share.
int64_t span_clock_ns();

struct Span {
  SpanLane lane;
  std::string_view what;     // "gather", "forward", …; of static lifetime
  std::string_view subject;  // FQN of the unit or parameter; must exist until the log is read
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t number = 0;  // number of a step, from 1
};

inline constexpr int kByteCounts = 7;

struct BytesAt {
  int64_t at_ns = 0;
  std::array<int64_t, kByteCounts> bytes{};  // one per category, in the caller's order
};

// [Note: a log that leaves the heap alone] While it records steps, the log keeps its records in the
// memory that start() reserved, as long as this memory is sufficient. Without reserved memory, a
// small block of the log could occupy memory that a freed activation left, and the activation of
// the next step would need new pages from the system. In a run with one rank, a step without
// reserved memory took 1.9 times as long as a step with it.
//
// Thread-safe, because worker threads of streams also write to the log.
class SpanLog {
 public:
  // Starts recording. Starts can be nested; the outermost start discards earlier records.
  void start();
  void stop();
  bool is_on() const { return starts_.load(std::memory_order_relaxed) > 0; }
  void add(const Span& span);
  void add(const BytesAt& bytes);
  // Adds the bytes in use now. They get the host's time or, after follow(), that of the stream.
  void add_now(const std::array<int64_t, kByteCounts>& bytes);
  // For a stream with a clock of its own (a plan): bytes get the time at which the stream reaches
  // them. Requires: the stream is synchronized before this object is destroyed.
  void follow(Stream& stream) { clock_ = &stream; }
  // Returns true if times are those of a stream, so the host's times must not be added.
  bool follows_stream() const { return clock_ != nullptr; }
  std::vector<Span> spans() const;
  std::vector<BytesAt> bytes() const;

 private:
  std::atomic<int> starts_ = 0;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<BytesAt> bytes_;
  Stream* clock_ = nullptr;  // null: the host's clock
};

// A scope that logs one span: the work issued on `stream` between construction and destruction.
class StreamSpan {
 public:
  StreamSpan(SpanLog& log, Stream& stream, SpanLane lane, std::string_view what,
             std::string_view subject)
      : StreamSpan(log, stream, {.lane = lane, .what = what, .subject = subject}) {}
  // Logs `span`, but with the times at which the stream reaches the begin and the end of the scope.
  StreamSpan(SpanLog& log, Stream& stream, const Span& span);
  ~StreamSpan();
  StreamSpan(const StreamSpan&) = delete;
  StreamSpan& operator=(const StreamSpan&) = delete;

 private:
  SpanLog& log_;
  Stream& stream_;
  std::shared_ptr<Span> span_;  // shared with the stream's work; null if the log is off
};

}  // namespace fsdp
