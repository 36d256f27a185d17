/* parallel_for: run tasks 0..count-1 on several threads. Which thread runs a task is left open, so a task must not depend on it. */
#ifndef REGARD_PARALLEL_H
#define REGARD_PARALLEL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#if !defined(_OPENMP) && defined(REGARD_PTHREADS)
#include <pthread.h>
#endif

/* Does one task; `scratch` is memory of the worker's own. */
typedef void (*parallel_task)(int64_t task, void *scratch, const void *context);

typedef struct {
    parallel_task run;
    const void *context;
    int64_t count;
    size_t scratch_bytes;
    _Atomic int64_t next;  /* the next task that nobody has taken */
    _Atomic int failed;    /* a worker got no memory */
} parallel_job;

static inline void *parallel_worker(void *argument) {
    parallel_job *job = argument;
    size_t bytes = (job->scratch_bytes + 4095) / 4096 * 4096;
    void *scratch = bytes ? aligned_alloc(4096, bytes) : NULL;
    if (bytes && !scratch) {
        atomic_store(&job->failed, 1);
        return NULL;
    }
    for (;;) {
        int64_t task = atomic_fetch_add(&job->next, 1);
        if (task >= job->count) break;
        job->run(task, scratch, job->context);
    }
    free(scratch);
    return NULL;
}

/* Return 0, or 1 when memory ran out (some tasks may not have been done). One thread never enters the thread library. */
static inline int parallel_for(int64_t count, int threads, size_t scratch_bytes, parallel_task run, const void *context) {
    parallel_job job = {.run = run, .context = context, .count = count, .scratch_bytes = scratch_bytes};
    if (threads > count) threads = (int)count;
    if (threads <= 1) {
        parallel_worker(&job);
        return atomic_load(&job.failed);
    }
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
    parallel_worker(&job);
#elif defined(REGARD_PTHREADS)
    enum { MOST = 256 };
    pthread_t workers[MOST];
    int started = 0;
    while (started < threads - 1 && started < MOST && pthread_create(&workers[started], NULL, parallel_worker, &job) == 0) started++;
    parallel_worker(&job);
    for (int i = 0; i < started; i++) pthread_join(workers[i], NULL);
#else
    parallel_worker(&job);
#endif
    return atomic_load(&job.failed);
}

#endif
