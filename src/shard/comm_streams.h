// CommStreams holds the streams of an engine. LibTorch's operators run on the compute stream.
// Collectives and transfers run on the other streams. docs/streams.md lists the waits between them.
#pragma once

#include <c10/core/Device.h>
#include <fsdp/mesh.h>
#include <fsdp/options.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/code_place.h"
#include "comm/mesh_state.h"
#include "libtorch/torch_cuda.h"
#include "runtime/span_log.h"
#include "runtime/stream.h"

namespace fsdp {

// The spans of one operation, for profilers and for a trace.
struct ContextSpan {
  torch_cuda::NamedRange range;
  StreamSpan span;
};

class CommStreams {
 public:
  // `mesh` and `spans` must outlive this object.
  CommStreams(const Mesh& mesh, const Options& options, SpanLog& spans);

  const Device& device;
  const at::Device torch_device;  // LibTorch's name of `device`
  Stream* compute;                // runs LibTorch's operators; owned by the device

 private:
  CommStreams(const Mesh& mesh, const Options& options, SpanLog& spans, MeshStreams streams);

 public:
  // The streams of the mesh, which all its engines share. This engine must call finish() before it
  // frees memory that these streams use.
  const std::shared_ptr<Stream> gather;
  const std::shared_ptr<Stream> reduce;
  // Null unless main state is on the host ([Note: main state on the host] in main_place.h).
  const std::unique_ptr<Stream> upload;
  const std::unique_ptr<Stream> download;

  // Returns true if the device is the CPU, whose memory is the host's. True also for a planned CPU.
  bool device_is_host() const { return compute->is_inline(); }
  // Returns true if the compute stream is the calling thread's current stream.
  bool computes_here() const;
  // Makes LibTorch's current stream the compute stream. The new stream waits for the work of the
  // old one (wait 15). This is needed because autograd runs a node on the stream of its forward. So
  // a backward may have another stream than the calls before and after it.
  void follow_compute();
  // Makes the compute stream wait for LibTorch's current stream, before a gradient is captured
  // (wait 17).
  // [Note: stream of the accumulator] If several operators contribute to a parameter's gradient,
  // LibTorch adds the contributions on one stream. It is the stream that was current at the
  // engine's construction, when the parameter's accumulator was made. This stream may differ from
  // that of the forward.
  void wait_for_autograd();

  // Makes later gathers wait for all work that was issued to the compute stream so far (wait 10).
  // Called for gathers between passes. A pass itself makes its gathers wait when it begins (wait
  // 1).
  void gather_after_compute();
  // Makes gathers that are issued later, and their uploads, wait for the event.
  void gather_after(const Event& event, CodePlace place = CodePlace::current()) const;

  // Notes that a unit was resharded while its gather was in flight, because the prefetch was not
  // used. The gather may still read main shards. So the compute stream waits for the gather at the
  // end of the forward or backward, before main shards are written. (If a unit stays in kGathering
  // between forward and backward, no such wait is needed: the next forward drops the gathered
  // values if main shards have changed.)
  void leave_gather() { has_left_gathers_ = true; }
  // Makes the compute stream wait for the gathers that leave_gather noted (wait 14).
  void wait_for_left_gathers();
  // Makes the reduce stream wait for the same gathers (wait 23). Called before the reduce stream
  // writes main shards.
  void reduce_after_left_gathers() const;

  // Calls `issue` and blocks until the stream has done this work and all earlier work. It also
  // blocks if `issue` or the wait throws. Callers use it before they free memory on which this rank
  // or a peer may have begun a collective. Errors: those of `issue` and of Stream::synchronize.
  void settle(Stream& stream, const std::function<void()>& issue) const;
  // Blocks until the streams have done all work. Called before memory that they may read is freed.
  // Ignores errors of the streams, because later waits for the streams report them.
  void finish() noexcept;

  // Returns spans of the operation `what` for `subject` on a stream. The spans end when the result
  // is destroyed.
  ContextSpan span(Stream& stream, std::string_view what, std::string_view subject) {
    const SpanLane lane = &stream == gather.get()     ? SpanLane::kGather
                          : &stream == reduce.get()   ? SpanLane::kReduce
                          : &stream == upload.get()   ? SpanLane::kUpload
                          : &stream == download.get() ? SpanLane::kDownload
                                                      : SpanLane::kCompute;
    return {{torch_device, what, subject}, {spans, stream, lane, what, subject}};
  }

  SpanLog& spans;
  int64_t exposed_comm_ns = 0;  // time that compute has waited for communication (ExposedTimer)

 private:
  const Mesh& mesh_;
  bool has_left_gathers_ = false;
};

// A timer for a scope in which compute waits. Adds the duration of the scope to the exposed
// communication. If compute runs inline on the calling thread, the timer reads the clock. Otherwise
// the compute stream reports the times. The reports are expensive, so the stream makes them only
// while spans are recorded.
class ExposedTimer {
 public:
  explicit ExposedTimer(CommStreams& streams);
  ~ExposedTimer();
  ExposedTimer(const ExposedTimer&) = delete;
  ExposedTimer& operator=(const ExposedTimer&) = delete;

 private:
  CommStreams& streams_;
  const bool is_inline_;
  int64_t start_ns_ = 0;
  std::shared_ptr<int64_t> began_ns_;  // shared with the stream; null if no times are reported
};

}  // namespace fsdp
