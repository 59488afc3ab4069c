// What trains with an engine: its optimizer, learning-rate schedulers and loss scaler.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fsdp {

enum class TrainingKind : uint8_t { kOptimizer, kScheduler, kLossScaler };

// Thread-safe. Shared by the engine and the places in it, which may outlive the engine.
class TrainingObjects {
 public:
  // In the order in which they were made.
  std::vector<std::string> names() const;

 private:
  friend class TrainingPlace;
  struct Entry {
    TrainingKind kind;
    std::string name;
  };
  mutable std::mutex mutex_;
  std::list<Entry> entries_;
};

// An object's place among them, from its construction to its destruction.
class TrainingPlace {
 public:
  // Errors: StateError for a second optimizer or loss scaler, naming the first.
  TrainingPlace(std::shared_ptr<TrainingObjects> objects, TrainingKind kind, std::string name);
  ~TrainingPlace();
  TrainingPlace(const TrainingPlace&) = delete;
  TrainingPlace& operator=(const TrainingPlace&) = delete;

 private:
  const std::shared_ptr<TrainingObjects> objects_;
  std::list<TrainingObjects::Entry>::iterator entry_;
};

}  // namespace fsdp
