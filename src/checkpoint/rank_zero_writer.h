// A file that rank 0 writes while the others bring what is in it.
#pragma once

#include <fsdp/agreement.h>

#include <functional>
#include <string_view>

namespace fsdp {

// All ranks call it alike; what fails ends the writing, and nothing more is done.
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
