#include "fsdp/program.h"

#include <fmt/format.h>
#include <fsdp/agreement.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "base/cpu_features.h"
#include "base/environment.h"
#include "base/standard_streams.h"
#include "comm/make_mesh.h"

namespace fsdp {
namespace {

constexpr const char* kForeignException =
    "the program threw an exception that is not a std::exception";

// Writes an error in the format that torchrun's agent reads. An error line has no line breaks, so
// only quotes and backslashes must be escaped.
void write_error_file(const std::string& path, const std::string& line) {
  if (path.empty()) return;
  std::string quoted;
  for (const char c : line) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  std::ofstream(path) << fmt::format(
      R"({{"message": {{"message": "{}", "extraInfo": {{"timestamp": "{}"}}}}}})", quoted,
      std::time(nullptr));
}

int report(const std::exception& error, const ErrorPlace& place,
           const LaunchEnvironment& environment) {
  const std::string line = error_line(error, place);
  // Flushes the program's output first, so that it appears above the error.
  std::fflush(stdout);
  write_error_line(line);
  write_error_file(environment.error_file, line);
  return static_cast<int>(exit_code_of(error));
}

// Returns the error's text without its hint. The other ranks get this text, because their error
// lines have their own hint.
std::string without_hint(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  if (ours == nullptr) return std::string(message_of(error));
  ErrorText text = ours->text();
  text.hint.clear();
  return Error(ours->code(), text).what();
}

// Handles std::terminate, which C++ calls for an exception that no code can catch (in a thread, in
// a destructor). Reports the exception in one line, instead of `terminate called` and the name of a
// type. After that the process dies by SIGABRT, which the other ranks see.
[[noreturn]] void report_and_abort() {
  ErrorPlace place{.rank = 0, .world_size = 1, .host = host_name(), .step = -1};
  LaunchEnvironment environment;
  try {
    environment = read_launch_environment();
    place.rank = environment.rank;
    place.world_size = environment.world_size;
    // std::terminate is also called without an exception, for example for a thread that is
    // destroyed before it has ended. The message then says so.
    const std::exception_ptr thrown = std::current_exception();
    if (!thrown) throw std::runtime_error("std::terminate was called without an exception");
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    report(error, place, environment);
  } catch (...) {
    report(std::runtime_error(kForeignException), place, environment);
  }
  std::abort();
}

}  // namespace

int run_program(const ProgramBody& body, MeshOptions options, const MeshMaking& making) {
  open_standard_streams();
  std::set_terminate(report_and_abort);
  leave_hidden_amx_alone();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit then fails like a full disk
  ErrorPlace place{.rank = 0, .world_size = 1, .host = host_name(), .step = -1};
  LaunchEnvironment environment;
  try {
    environment = read_launch_environment();
    place.rank = environment.rank;
    place.world_size = environment.world_size;
    if (!options.on_event) {
      // Only warnings arrive on the thread that counts steps in `place`. Other events use the copy
      // `at`, because reading `place` on their threads would be a race.
      options.on_event = [&place, at = place, environment](const MeshEvent& event) {
        if (event.kind == MeshEvent::Kind::kStuck) {
          // _Exit skips destructors, which would wait for the stuck thread.
          std::_Exit(report(CommError(event.text, event.code), at, environment));
        }
        if (event.kind == MeshEvent::Kind::kNote) return write_error_line(note_line(event.text));
        const bool has_step = event.kind == MeshEvent::Kind::kWarning;
        write_error_line(warning_line(event.text, has_step ? place : at));
      };
    }
    const Mesh mesh = make_mesh(options, making);
    try {
      return body(mesh, place);
    } catch (const RefusedElsewhere& refusal) {
      // Another rank has ended the job and prints the cause, so this rank prints nothing.
      return refusal.exit_code();
    } catch (const std::exception& error) {
      // This rank prints its error before it aborts the job, because the other ranks print errors
      // after the abort. So the first error line of the job is the cause.
      const int code = report(error, place, environment);
      mesh.abort(without_hint(error));
      return code;
    }
  } catch (const std::exception& error) {
    return report(error, place, environment);
  } catch (...) {
    return report(std::runtime_error(kForeignException), place, environment);
  }
}

}  // namespace fsdp
