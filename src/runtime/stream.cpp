#include "runtime/stream.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "fsdp/error.h"

namespace fsdp {

struct Event::Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  std::exception_ptr failure;

  void reach(std::exception_ptr with_failure) {
    {
      const std::lock_guard lock(mutex);
      reached = true;
      failure = std::move(with_failure);
    }
    changed.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached; });
    if (failure) std::rethrow_exception(failure);
  }
};

void Event::synchronize() const {
  if (mark_) mark_->wait();
}

bool Event::reached() const {
  if (!mark_) return true;
  const std::lock_guard lock(mark_->mutex);
  return mark_->reached;
}

class InlineCpuStream final : public CpuStream {
 public:
  void record(Event& event) override { event.mark_ = nullptr; }
  void wait(const Event& event) override { event.synchronize(); }
  void synchronize() override {}
  bool is_inline() const override { return true; }

 private:
  void enqueue(std::function<void()> task) override { task(); }
};

class ThreadedCpuStream final : public CpuStream {
 public:
  explicit ThreadedCpuStream(std::string name) : worker_([this] { work(); }) {
    pthread_setname_np(worker_.native_handle(), name.substr(0, 15).c_str());
  }

  ~ThreadedCpuStream() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  void record(Event& event) override {
    event.mark_ = std::make_shared<Event::Mark>();
    push([this, mark = event.mark_] { mark->reach(failure()); }, /*always=*/true);
  }

  void wait(const Event& event) override {
    if (event.mark_) push([mark = event.mark_] { mark->wait(); }, /*always=*/false);
  }

  void synchronize() override {
    Event event;
    record(event);
    event.synchronize();
  }

  bool is_inline() const override { return false; }

 private:
  struct Item {
    std::function<void()> task;
    bool always;  // runs also after a failure: marks must be reached, or waiters would hang
  };

  void enqueue(std::function<void()> task) override { push(std::move(task), /*always=*/false); }

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
      if (failure_ && !item.always) continue;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        item.task();
      } catch (...) {
        thrown = std::current_exception();
      }
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
  std::thread worker_;  // last: starts when everything above exists
};

std::unique_ptr<CpuStream> make_cpu_stream(CpuStreams kind, std::string name) {
  if (kind == CpuStreams::kInline) return std::make_unique<InlineCpuStream>();
  return std::make_unique<ThreadedCpuStream>(std::move(name));
}

CpuStream& cpu_stream(Stream& stream) {
  auto* cpu = dynamic_cast<CpuStream*>(&stream);
  if (cpu == nullptr) {
    throw StateError({.what = "a CPU kernel or communicator was given another device's stream",
                      .where = {},
                      .cause = {},
                      .hint = "engine, mesh and module must be on one kind of device"});
  }
  return *cpu;
}

}  // namespace fsdp
