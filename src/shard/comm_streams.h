// The streams of an engine: LibTorch's, on which operators run, and those that carry bytes.
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

// The spans of one piece of work, for a trace and for profilers.
struct ContextSpan {
  torch_cuda::NamedRange range;
  StreamSpan span;
};

class CommStreams {
 public:
  // `mesh` and `spans` live as long.
  CommStreams(const Mesh& mesh, const Options& options, SpanLog& spans);

  const Device& device;
  const at::Device torch_device;  // the same, as LibTorch knows it
  Stream* compute;                // on which LibTorch's operators run; the device's

 private:
  CommStreams(const Mesh& mesh, const Options& options, SpanLog& spans, MeshStreams streams);

 public:
  // The mesh's, shared by its engines: what is queued here is idle only after finish().
  const std::shared_ptr<Stream> gather;
  const std::shared_ptr<Stream> reduce;
  // Null where main state is not on the host ([Note: main state on the host]).
  const std::unique_ptr<Stream> upload;
  const std::unique_ptr<Stream> download;

  // Whether compute is the calling thread's current stream.
  bool computes_here() const;
  // LibTorch's current stream may be another one than at the last forward: it takes over, in order.
  // Autograd runs a node on the stream of its forward, so that a backward may have another one than
  // the calls before and after it.
  void follow_compute();
  // [Note: where autograd adds] LibTorch adds up what several operators give a parameter on the
  // stream that was current when its accumulator was made, at the engine's construction; that may
  // be another one than the forward's. Before a gradient is captured.
  void wait_for_autograd();

  // Gathers from now on come after what compute was given so far: those between passes call it, in
  // a pass its begin has (wait 1).
  void gather_after_compute();
  // What gathers write, from here on, comes after the event.
  void gather_after(const Event& event, CodePlace place = CodePlace::current()) const;

  // A gather that nobody has waited for (it was ahead of a use that did not come) may still read
  // main shards when its unit is resharded. Compute waits for such at the end of the forward or
  // backward, before anybody writes main shards. (What a unit that stays seated between the two has
  // gathered and not used is given back at the next forward, and its values with it.)
  void leave_gather() { has_left_gathers_ = true; }
  void wait_for_left_gathers();

  // Calls `issue` and blocks until the stream has done it and everything before, even where either
  // throws: what they work on goes next, memory of LibTorch's, say, over which this rank or a peer
  // may have begun a collective. Errors: those of `issue`; as Stream::synchronize.
  void settle(Stream& stream, const std::function<void()>& issue) const;
  // Blocks until the streams have done everything issued; what they threw was or is heard of
  // elsewhere. Before memory that they may still read is given back.
  void finish() noexcept;

  // What `subject` does on a stream until the span is destroyed.
  ContextSpan span(Stream& stream, std::string_view what, std::string_view subject) {
    const SpanLane lane = &stream == gather.get()     ? SpanLane::kGather
                          : &stream == reduce.get()   ? SpanLane::kReduce
                          : &stream == upload.get()   ? SpanLane::kUpload
                          : &stream == download.get() ? SpanLane::kDownload
                                                      : SpanLane::kCompute;
    return {{torch_device, what, subject}, {spans, stream, lane, what, subject}};
  }

  SpanLog& spans;
  int64_t exposed_comm_ns = 0;  // for which compute has waited: ExposedTimer

 private:
  const Mesh& mesh_;
  bool has_left_gathers_ = false;
};

// Adds the time until destruction to the exposed communication: compute waits for it. Where compute
// is the calling thread the clock tells; where it is a stream of a device, the stream, and only
// while somebody records spans.
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
  std::shared_ptr<int64_t> began_ns_;  // shared with the stream's work; null where it tells no time
};

}  // namespace fsdp
