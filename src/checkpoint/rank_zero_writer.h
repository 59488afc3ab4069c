// RankZeroWriter: all ranks contribute to a file, and rank 0 writes the file.
#pragma once

#include <fsdp/agreement.h>

#include <functional>
#include <string_view>

namespace fsdp {

// A job of all ranks in which rank 0 writes one file. All ranks must make the same calls. After a
// failure, which is reported to all ranks, further calls do nothing.
class RankZeroWriter {
 public:
  RankZeroWriter(const Mesh& mesh, std::string_view what) : mesh_(mesh), what_(what) {}

  // Runs `work` on rank 0; the other ranks wait for it. Collective.
  void write(const std::function<void()>& work) {
    if (outcome_.failed()) return;
    outcome_ = run_on_all_ranks(mesh_, what_, [&] {
      if (mesh_.rank() == 0) work();
    });
  }
  const Outcome& outcome() const { return outcome_; }

 private:
  const Mesh& mesh_;
  const std::string_view what_;
  Outcome outcome_;
};

}  // namespace fsdp
