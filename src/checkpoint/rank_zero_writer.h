// RankZeroWriter: rank 0 writes a file, and all ranks contribute to it.
#pragma once

#include <fsdp/agreement.h>

#include <functional>
#include <string_view>

namespace fsdp {

// The writing of one file. All ranks call it alike. After a failure, which all ranks learn, it does
// nothing more.
class RankZeroWriter {
 public:
  RankZeroWriter(const Mesh& mesh, std::string_view what) : mesh_(mesh), what_(what) {}

  // Runs `work` on rank 0; the others wait for it. Collective.
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
