#include "comm/job/job_progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/environment.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

Descriptor require_open(Descriptor file) {
  if (file) return file;
  throw DeviceError({.what = "the memory for a job's progress cannot be created",
                     .cause = std::strerror(errno),
                     .hint = "raise the limit of open files (ulimit -n)"});
}

}  // namespace

JobProgress::JobProgress(Descriptor file)
    : file_(require_open(std::move(file))), memory_(file_, sizeof(Numbers), "a job's progress") {}

JobProgress JobProgress::create() {
  Descriptor file(memfd_create("fsdp-progress", MFD_CLOEXEC));
  if (file && ftruncate(file.get(), sizeof(Numbers)) != 0) file = Descriptor();
  JobProgress progress(std::move(file));
  new (progress.memory_.data()) Numbers();
  return progress;
}

std::optional<JobProgress> JobProgress::inherited() {
  const int given = read_launch_environment().progress_fd;
  if (given < 0) return std::nullopt;
  // The descriptor is duplicated and not taken over, because a later call reads the same number
  // from the environment and must find it open.
  Descriptor file(fcntl(given, F_DUPFD_CLOEXEC, 0));
  if (!file) {
    throw InvalidArgument(
        {.what = fmt::format("FSDP_PROGRESS_FD={} is not an open file descriptor", given),
         .cause = std::strerror(errno),
         .hint = "do not close inherited descriptors between fsdp-run and the program"},
        ExitCode::kConfiguration);
  }
  return JobProgress(std::move(file));
}

}  // namespace fsdp
