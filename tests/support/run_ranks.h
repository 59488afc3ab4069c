// Runs threads as ranks of one mesh, for tests.
#pragma once

#include <fsdp/mesh.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fsdp::testing {

// A check that begins before a rank's body and ends after it.
class RankWatch {
 public:
  virtual ~RankWatch() = default;
  // Both are called in the rank's thread, before and after the body. If the body did not throw,
  // `end` throws an error with its findings.
  virtual void begin() = 0;
  virtual void end(bool threw) = 0;
};

struct WatchedRank {
  std::shared_ptr<RankWatch> watch;  // may be null; outlives the mesh
  Mesh mesh;
};

struct RunRanksOptions {
  MeshOptions mesh;
  // Called first in each rank's thread, for example to set thread-local state of a library.
  std::function<void()> in_each_thread;
  // Makes the ranks. If it is empty, run_ranks calls make_ranks_by_default().
  std::function<std::vector<WatchedRank>(int world, const MeshOptions& options)> make;
};

// A function that makes ranks. It is set by a program that runs another program's tests on its own
// devices. If it is null, Mesh::local makes the ranks.
using MakeRanks = std::vector<WatchedRank> (*)(int world, const MeshOptions& options);
inline MakeRanks& make_ranks_by_default() {
  static MakeRanks make = nullptr;
  return make;
}

inline std::vector<WatchedRank> make_ranks(int world, const RunRanksOptions& options) {
  if (options.make) return options.make(world, options.mesh);
  if (make_ranks_by_default() != nullptr) return make_ranks_by_default()(world, options.mesh);
  std::vector<WatchedRank> ranks;
  for (Mesh& mesh : Mesh::local(world, options.mesh)) ranks.push_back({nullptr, std::move(mesh)});
  return ranks;
}

// The exception of each rank (null if it did not throw), and the rank that threw first (-1 if none
// threw).
struct RankExceptions {
  std::vector<std::exception_ptr> of_rank;
  int first = -1;
};

template <class Body>
void run_watched(RankWatch* watch, Body body) {
  if (watch == nullptr) return body();
  watch->begin();
  try {
    body();
  } catch (...) {
    watch->end(/*threw=*/true);
    throw;
  }
  watch->end(/*threw=*/false);
}

// Runs body(mesh) for every rank, each in its own thread, and waits for all. A rank that throws
// aborts the mesh, as in a program. Returns the exceptions.
template <class Body>
RankExceptions run_ranks_to_end(int world, Body body, const RunRanksOptions& options = {}) {
  RankExceptions thrown{.of_rank = std::vector<std::exception_ptr>(world), .first = -1};
  std::mutex mutex;
  std::vector<WatchedRank> ranks = make_ranks(world, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back(
        [&, rank, watch = ranks[rank].watch.get(), mesh = std::move(ranks[rank].mesh)]() mutable {
          const auto keep = [&] {
            const std::lock_guard lock(mutex);
            thrown.of_rank[rank] = std::current_exception();
            if (thrown.first < 0) thrown.first = rank;
          };
          try {
            if (options.in_each_thread) options.in_each_thread();
            run_watched(watch, [&] { body(mesh); });
          } catch (const std::exception& error) {
            keep();
            mesh.abort(error.what());
          } catch (...) {
            keep();
            mesh.abort("an assertion of the test failed");
          }
          // Moves the mesh here, so that it is destroyed in this thread when the rank has finished.
          const Mesh finished = std::move(mesh);
        });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

// Runs body(mesh) for every rank. If a rank throws, prints on stderr which rank threw first, and
// rethrows its exception.
template <class Body>
void run_ranks(int world, Body body, const RunRanksOptions& options = {}) {
  const RankExceptions thrown = run_ranks_to_end(world, std::move(body), options);
  if (thrown.first < 0) return;
  std::fprintf(stderr, "rank %d of %d threw first\n", thrown.first, world);
  std::rethrow_exception(thrown.of_rank[thrown.first]);
}

// Runs body(mesh) for every rank. Returns what() of each rank's exception, or an empty string for a
// rank that did not throw.
template <class Body>
std::vector<std::string> errors_of_ranks(int world, Body body,
                                         const RunRanksOptions& options = {}) {
  const RankExceptions thrown = run_ranks_to_end(world, std::move(body), options);
  std::vector<std::string> texts(world);
  for (int rank = 0; rank < world; ++rank) {
    if (!thrown.of_rank[rank]) continue;
    try {
      std::rethrow_exception(thrown.of_rank[rank]);
    } catch (const std::exception& error) {
      texts[rank] = error.what();
    } catch (...) {
      texts[rank] = "an assertion of the test failed";
    }
  }
  return texts;
}

}  // namespace fsdp::testing
