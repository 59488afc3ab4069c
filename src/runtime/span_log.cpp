#include "runtime/span_log.h"

#include <algorithm>
#include <chrono>

#include "fsdp/error.h"

namespace fsdp {

std::string_view name_of(SpanLane lane) {
  switch (lane) {
    case SpanLane::kStep:
      return "steps";
    case SpanLane::kInput:
      return "input";
    case SpanLane::kCompute:
      return "compute";
    case SpanLane::kGather:
      return "gather";
    case SpanLane::kReduce:
      return "reduce";
    case SpanLane::kUpload:
      return "upload";
    case SpanLane::kDownload:
      return "download";
    case SpanLane::kBackward:
      return "units in backward";
  }
  return "unknown";
}

namespace {
// Number of spans for which start() reserves memory: about ten steps of a large model. A longer
// trace allocates memory each time that its vectors must grow.
constexpr size_t kSpansAhead = 1 << 16;
constexpr size_t kBytesAhead = 1 << 14;
}  // namespace

int64_t span_clock_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void SpanLog::start() {
  const std::lock_guard lock(mutex_);
  // A nested start keeps the records since the outermost start.
  if (starts_++ > 0) return;
  spans_.clear();
  bytes_.clear();
  spans_.reserve(kSpansAhead);
  bytes_.reserve(kBytesAhead);
}
void SpanLog::stop() { --starts_; }

void SpanLog::add(const Span& span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back(span);
}

void SpanLog::add(const BytesAt& bytes) {
  const std::lock_guard lock(mutex_);
  bytes_.push_back(bytes);
}

void SpanLog::add_now(const std::array<int64_t, kByteCounts>& bytes) {
  if (clock_ == nullptr) return add(BytesAt{.at_ns = span_clock_ns(), .bytes = bytes});
  clock_->tell_time([this, bytes](int64_t ns) { add(BytesAt{.at_ns = ns, .bytes = bytes}); });
}

std::vector<Span> SpanLog::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::vector<BytesAt> SpanLog::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

StreamSpan::StreamSpan(SpanLog& log, Stream& stream, const Span& span)
    : log_(log), stream_(stream) {
  if (!log.is_on()) return;
  // The span is shared with the stream's work, which writes the times and may outlive this object.
  span_ = std::make_shared<Span>(span);
  stream_.tell_time([begun = span_](int64_t ns) { begun->begin_ns = ns; });
}

StreamSpan::~StreamSpan() {
  if (!span_) return;
  try {
    stream_.tell_time([span = span_, &log = log_](int64_t ns) {
      span->end_ns = std::max(ns, span->begin_ns);  // the times may be of two clocks
      log.add(*span);
    });
  } catch (const DeviceError&) {  // a destructor must not throw, so the span is lost
  }
}

}  // namespace fsdp
