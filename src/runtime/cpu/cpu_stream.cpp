#include "runtime/cpu/cpu_stream.h"

#include <pthread.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "fsdp/error.h"
#include "runtime/span_log.h"

namespace fsdp {

namespace {

// A point in the queue of a stream with a worker. Other threads can wait until the worker reaches
// it. The event and the worker share the mark, so the mark may outlive either of them.
struct Mark final : EventMark {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_reached = false;
  std::exception_ptr failure;

  void reach(std::exception_ptr with_failure) {
    {
      const std::lock_guard lock(mutex);
      is_reached = true;
      failure = std::move(with_failure);
    }
    changed.notify_all();
  }

  void wait() override {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_reached; });
    if (failure) std::rethrow_exception(failure);
  }

  bool reached() override {
    const std::lock_guard lock(mutex);
    return is_reached;
  }
};

// A stream without a queue. The issuing call does the work, so the stream's own marks are always
// reached.
class InlineCpuStream final : public CpuStream {
 public:
  using CpuStream::CpuStream;
  void synchronize() override {}
  bool is_inline() const override { return true; }
  void call(std::function<void()> on_host) override { on_host(); }

 private:
  std::shared_ptr<EventMark> mark(CodePlace) override { return nullptr; }
  // `mark` belongs to a threaded stream. This call blocks until that stream's worker reaches the
  // mark.
  void wait_for(const std::shared_ptr<EventMark>& mark, CodePlace) override { mark->wait(); }
};

// A stream with a worker thread, which runs the queue in the order of issue. After the first
// exception the worker drops all further work. It still reaches marks, and waiting for such a mark
// rethrows the exception.
class ThreadedCpuStream final : public CpuStream {
 public:
  ThreadedCpuStream(const Device& device, const std::string& name)
      : CpuStream(device), worker_([this] { work(); }) {
    // Linux refuses a name of more than 15 characters.
    pthread_setname_np(worker_.native_handle(), name.substr(0, 15).c_str());
  }

  // The worker empties the queue before it ends, so all issued work runs.
  ~ThreadedCpuStream() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  void synchronize() override { mark()->wait(); }
  bool is_inline() const override { return false; }
  void call(std::function<void()> on_host) override { push(std::move(on_host), /*always=*/false); }

 private:
  std::shared_ptr<EventMark> mark(CodePlace = {}) override {
    auto mark = std::make_shared<Mark>();
    // failure() is called when the worker reaches the mark, so it covers all work before the mark.
    // `this` is alive then, because the destructor joins the worker.
    push([this, mark] { mark->reach(failure()); }, /*always=*/true);
    return mark;
  }

  void wait_for(const std::shared_ptr<EventMark>& mark, CodePlace) override {
    push([mark] { mark->wait(); }, /*always=*/false);
  }

  struct Item {
    std::function<void()> task;
    bool always;  // runs also after a failure, so that the waiters of marks do not hang
  };

  void push(std::function<void()> task, bool always) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back({std::move(task), always});
    }
    changed_.notify_all();
  }

  std::exception_ptr failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closing_ || !items_.empty(); });
      if (items_.empty()) return;
      Item item = std::move(items_.front());
      items_.pop_front();
      const bool runs = item.always || !failure_;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        if (runs) item.task();
      } catch (...) {
        thrown = std::current_exception();
      }
      // The task may hold the last reference to some memory. Destroy the task without the lock,
      // because the memory's destructor may issue work to this stream.
      item.task = nullptr;
      lock.lock();
      if (thrown && !failure_) failure_ = thrown;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  std::exception_ptr failure_;
  bool closing_ = false;
  std::thread worker_;  // last member: starts when all members above exist
};

}  // namespace

std::unique_ptr<Stream> make_cpu_stream(const Device& device, const StreamOptions& options) {
  if (!options.runs_beside) return std::make_unique<InlineCpuStream>(device);
  return std::make_unique<ThreadedCpuStream>(device, options.name);
}

// The copy runs in the caller's thread. After synchronize(), no work of this stream writes to
// `from` any more.
void CpuStream::read(void* to, const void* from, int64_t bytes) {
  synchronize();
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CpuStream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  run([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
}

void CpuStream::tell_time(std::function<void(int64_t ns)> tell) {
  run([tell = std::move(tell)] { tell(span_clock_ns()); });
}

CpuStream& cpu_stream(Stream& stream) {
  auto* cpu = dynamic_cast<CpuStream*>(&stream);
  if (cpu == nullptr) {
    throw StateError({.what = "a CPU kernel or communicator got the stream of another device",
                      .hint = "put the engine, the mesh and the module on one kind of device"});
  }
  return *cpu;
}

}  // namespace fsdp
