// A log of one rank's work over time, for traces that people read: spans on lanes, and the bytes in
// use. It is off, and then almost free, until a trace starts it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "runtime/stream.h"

namespace fsdp {

// A row of the trace. Spans of kBackward may overlap: a unit closes after the next has opened.
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
  std::string_view what;     // "gather", "forward", …: of static lifetime
  std::string_view subject;  // the unit's or parameter's FQN: lives until the log is read
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t number = 0;  // of a step, from 1
};

inline constexpr int kByteCounts = 6;

struct BytesAt {
  int64_t at_ns = 0;
  std::array<int64_t, kByteCounts> bytes{};  // one a category, in the caller's order
};

// [Note: a log that leaves the heap alone]
// While steps are recorded, nothing that stays is allocated until the log outgrows the memory that
// start() reserved. Otherwise a small block occupies the hole that an activation left, and the next
// step's activation needs fresh pages of the system: steps of one rank took 1.9 times as long.
//
// Thread-safe: streams with worker threads write here, too.
class SpanLog {
 public:
  // Records from here on; the first start discards earlier records. Starts nest.
  void start();
  void stop();
  bool is_on() const { return starts_ > 0; }
  void add(const Span& span);
  void add(const BytesAt& bytes);
  std::vector<Span> spans() const;
  std::vector<BytesAt> bytes() const;

 private:
  int starts_ = 0;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<BytesAt> bytes_;
};

// A scope: logs the work issued on `stream` between construction and destruction as one span.
class StreamSpan {
 public:
  StreamSpan(SpanLog& log, Stream& stream, SpanLane lane, std::string_view what,
             std::string_view subject)
      : StreamSpan(log, stream, {.lane = lane, .what = what, .subject = subject}) {}
  // Takes `span` without its times.
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
