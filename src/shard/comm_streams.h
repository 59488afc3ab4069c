// CommStreams holds the streams of an engine: compute, on which LibTorch's operators run, and the
// streams of collectives and transfers. docs/streams.md lists the waits between them.
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

// The spans of one piece of work: for profilers and for a trace.
struct ContextSpan {
  torch_cuda::NamedRange range;
  StreamSpan span;
};

class CommStreams {
 public:
  // Requires: `mesh` and `spans` live as long.
  CommStreams(const Mesh& mesh, const Options& options, SpanLog& spans);

  const Device& device;
  const at::Device torch_device;  // the same device in LibTorch's terms
  Stream* compute;                // runs LibTorch's operators; owned by the device

 private:
  CommStreams(const Mesh& mesh, const Options& options, SpanLog& spans, MeshStreams streams);

 public:
  // The mesh's streams, shared by its engines: this engine may not free memory that they use before
  // finish().
  const std::shared_ptr<Stream> gather;
  const std::shared_ptr<Stream> reduce;
  // Null unless main state is on the host ([Note: main state on the host] in main_place.h).
  const std::unique_ptr<Stream> upload;
  const std::unique_ptr<Stream> download;

  // Returns true if compute is the calling thread's current stream.
  bool computes_here() const;
  // Makes LibTorch's current stream compute, ordered behind the stream before (wait 15). Autograd
  // runs a node on the stream of its forward, so a backward may have another stream than the calls
  // before and after it.
  void follow_compute();
  // Lets compute wait for LibTorch's current stream, before a gradient is captured (wait 17).
  // [Note: where autograd adds] If several operators contribute to a parameter's gradient, LibTorch
  // adds on the stream that was current when the parameter's accumulator was made, at the engine's
  // construction. That may be another stream than the forward's.
  void wait_for_autograd();

  // Orders later gathers behind the work that compute has so far (wait 10). For gathers between
  // passes; a pass does it once, at its begin (wait 1).
  void gather_after_compute();
  // Orders later gathers, and their uploads, behind the event.
  void gather_after(const Event& event, CodePlace place = CodePlace::current()) const;

  // Notes that a unit was resharded while its gather was in flight: a prefetch that was not used.
  // The gather may still read main shards. So compute waits for it at the end of the forward or
  // backward, before main shards are written. (A unit that stays gathering between forward and
  // backward needs no such wait: the next forward drops its values if main shards have changed.)
  void leave_gather() { has_left_gathers_ = true; }
  // Lets compute wait for these gathers (wait 14).
  void wait_for_left_gathers();

  // Calls `issue` and blocks until the stream has done that work and all before it, also if either
  // throws. The caller frees memory next (LibTorch's, for example) on which this rank or a peer may
  // have begun a collective. Errors: those of `issue`; as Stream::synchronize.
  void settle(Stream& stream, const std::function<void()>& issue) const;
  // Blocks until the streams have done all work, before memory that they may read is freed.
  // Swallows their errors, which other waits report.
  void finish() noexcept;

  // Returns spans of `what` for `subject`, on a stream, that end when they are destroyed.
  ContextSpan span(Stream& stream, std::string_view what, std::string_view subject) {
    const SpanLane lane = &stream == gather.get()     ? SpanLane::kGather
                          : &stream == reduce.get()   ? SpanLane::kReduce
                          : &stream == upload.get()   ? SpanLane::kUpload
                          : &stream == download.get() ? SpanLane::kDownload
                                                      : SpanLane::kCompute;
    return {{torch_device, what, subject}, {spans, stream, lane, what, subject}};
  }

  SpanLog& spans;
  int64_t exposed_comm_ns = 0;  // time that compute waited for communication: ExposedTimer

 private:
  const Mesh& mesh_;
  bool has_left_gathers_ = false;
};

// A timer that adds its lifetime to the exposed communication: compute waits meanwhile. If compute
// is the calling thread, the timer reads the clock. If it is a stream, the stream reports times,
// and only while spans are recorded, because that is not free.
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
  std::shared_ptr<int64_t> began_ns_;  // shared with the stream's work; null if none reports times
};

}  // namespace fsdp
