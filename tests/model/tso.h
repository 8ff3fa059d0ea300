/*
 * tso.h - the memory model of x86: shared cells behind one store buffer for each CPU.
 *
 * A plain store waits in its CPU's buffer, in order, until the process drain() moves it to memory, at any later time. A
 * load reads the CPU's own newest buffered store, else memory. A locked instruction (RMW, seq_cst store) is executed
 * when the buffer is empty, and in memory. The stores in a dead process's buffer still become visible.
 *
 * The including file first defines CPUS and CELLS. Buffers hold two stores, which is one more than any protocol here
 * needs. drain() must stay the first proctype, because it takes its CPU number from _pid.
 */
typedef store_buffer
{
	byte used;
	byte addr0;
	byte val0; /* the older store */
	byte addr1;
	byte val1
}
store_buffer buffer[CPUS];
byte mem[CELLS];

#define DRAINED(cpu) (buffer[cpu].used == 0)
#define LOAD(cpu, a) \
	((buffer[cpu].used == 2 && buffer[cpu].addr1 == (a))->buffer[cpu].val1 \
		: ((buffer[cpu].used > 0 && buffer[cpu].addr0 == (a))->buffer[cpu].val0 \
			: mem[a]))

/* A plain or release store. */
inline store(cpu, a, v)
{
	d_step
	{
		buffer[cpu].used < 2->if ::buffer[cpu].used == 0->buffer[cpu].addr0 = a;
		buffer[cpu].val0 = v ::else->buffer[cpu].addr1 = a;
		buffer[cpu].val1 = v fi;
		buffer[cpu].used++
	}
}

/* One locked instruction: the statement happens at once and in memory. */
#define LOCKED(cpu, statement) \
	d_step \
	{ \
		DRAINED(cpu)->statement \
	}

active[CPUS] proctype drain()
{
end:
	do
		::d_step
		{
			buffer[_pid].used > 0->mem[buffer[_pid].addr0] = buffer[_pid].val0;
			buffer[_pid].addr0 = buffer[_pid].addr1;
			buffer[_pid].val0 = buffer[_pid].val1;
			buffer[_pid].addr1 = 0;
			buffer[_pid].val1 = 0;
			buffer[_pid].used--
		}
	od
}
