// Streams and events: the order in which work is done on a device.
//
// A stream runs its work in the order of issue. Two streams are ordered only by an event: one
// records it, the other waits for it. The engine's list of waits (docs/streams.md) is written
// against these two classes and nothing else; a device adds an implementation, not a rule.
//
// On the CPU there are two kinds. An inline stream runs work at once, in the caller's thread: the
// compute stream is always inline (LibTorch's operators are), and by default so are all others.
// A threaded stream has a worker thread: communication then overlaps with compute, and the tests
// use it to find waits that are missing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace fsdp {

class Event;

class Stream {
 public:
  virtual ~Stream() = default;
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Marks the point reached by the work issued so far. Re-recording moves the mark.
  virtual void record(Event& event) = 0;
  // Work issued after this call starts only once the event's last recorded point is reached.
  // An event never recorded is reached. On an inline stream the caller's thread blocks.
  // Errors: rethrows what the recording stream's work threw before that point.
  virtual void wait(const Event& event) = 0;
  // Blocks the caller until everything issued is done. Errors: rethrows what the work threw; a
  // stream whose work threw runs nothing more and stays in that state.
  virtual void synchronize() = 0;
  // True if work is done by the time the issuing call returns.
  virtual bool is_inline() const = 0;
};

// A stream of a CPU: work is a callable. Kernels and CPU communicators get at it with cpu_stream().
class CpuStream : public Stream {
 public:
  // Runs the task in stream order; at once if the stream is inline. What the task refers to must
  // live until the stream has passed it.
  template <class Task>
  void run(Task&& task) {
    if (is_inline()) {
      std::forward<Task>(task)();
    } else {
      enqueue(std::function<void()>(std::forward<Task>(task)));
    }
  }

 private:
  virtual void enqueue(std::function<void()> task) = 0;
};

// Errors: StateError if the stream belongs to another kind of device.
CpuStream& cpu_stream(Stream& stream);

enum class CpuStreams { kInline, kThreaded };

// `name` is the worker thread's name, shown by debuggers and traces (at most 15 characters count).
std::unique_ptr<CpuStream> make_cpu_stream(CpuStreams kind, std::string name);

// A point in a stream's work. Cheap to keep and to re-record; recorded and waited for by streams
// only.
class Event {
 public:
  // Blocks the caller until the last recorded point is reached. Errors: as Stream::wait.
  void synchronize() const;
  // True if the last recorded point is reached, or if there is none.
  bool reached() const;

  struct Mark;  // shared by the event, the stream that records and the streams that wait

 private:
  friend class ThreadedCpuStream;
  friend class InlineCpuStream;
  std::shared_ptr<Mark> mark_;  // null: never recorded, or recorded on an inline stream
};

}  // namespace fsdp
