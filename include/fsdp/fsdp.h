// Everything that a training program needs; include this one.
#pragma once

#include <fsdp/communicator.h>
#include <fsdp/data.h>
#include <fsdp/dtype.h>
#include <fsdp/engine.h>
#include <fsdp/error.h>
#include <fsdp/memory.h>
#include <fsdp/mesh.h>
#include <fsdp/optim.h>
#include <fsdp/options.h>
#include <fsdp/sync_batch_norm.h>
#include <fsdp/trace.h>
#include <fsdp/unit.h>
